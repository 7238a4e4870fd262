-- Queries of budgets of this database alone; the others are in `sql/budgets.sql`.

-- name: add
INSERT INTO budget_accounts AS a VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (kind, tenant, agent, name) DO UPDATE
SET tokens = a.tokens + excluded.tokens, cost_usd = a.cost_usd + excluded.cost_usd,
    tool_calls = a.tool_calls + excluded.tool_calls, wall_seconds = a.wall_seconds + excluded.wall_seconds,
    expires_at = max(a.expires_at, excluded.expires_at)
RETURNING tokens, cost_usd, tool_calls, wall_seconds

-- name: renew
UPDATE budget_holds SET expires_at = ?2 WHERE holder = ?1
