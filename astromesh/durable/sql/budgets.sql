-- Queries of budgets for both databases, written for PostgreSQL (astromesh/storage/queries.py).

-- name: spent
SELECT tokens, cost_usd, tool_calls, wall_seconds FROM astromesh.budget_accounts
WHERE kind = $1 AND tenant = $2 AND agent = $3 AND name = $4

-- name: accounts
-- The newest accounts of a tenant, or of one of its principals, with what is spent or reserved.
SELECT a.kind, a.tenant, a.agent, a.name, a.owner, a.expires_at,
    a.tokens + coalesce(sum(h.tokens), 0), a.cost_usd + coalesce(sum(h.cost_usd), 0),
    a.tool_calls + coalesce(sum(h.tool_calls), 0), a.wall_seconds + coalesce(sum(h.wall_seconds), 0)
FROM astromesh.budget_accounts a LEFT JOIN astromesh.budget_holds h
    ON h.kind = a.kind AND h.tenant = a.tenant AND h.agent = a.agent AND h.name = a.name AND h.expires_at > $3
WHERE a.tenant = $1 AND ($2::text IS NULL OR a.owner = $2)
GROUP BY a.kind, a.tenant, a.agent, a.name, a.owner, a.expires_at, a.tokens, a.cost_usd, a.tool_calls, a.wall_seconds
ORDER BY a.expires_at DESC LIMIT $4

-- name: delete_stale_holds
DELETE FROM astromesh.budget_holds
WHERE kind = $1 AND tenant = $2 AND agent = $3 AND name = $4
    AND (expires_at <= $5 OR (run_id = $6 AND holder <> $7))

-- name: reserved
SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0), coalesce(sum(tool_calls), 0),
    coalesce(sum(wall_seconds), 0)
FROM astromesh.budget_holds
WHERE kind = $1 AND tenant = $2 AND agent = $3 AND name = $4 AND expires_at > $5

-- name: reserve
INSERT INTO astromesh.budget_holds VALUES (
    $5, $1, $2, $3, $4, $6, $7, $8, $9, $10, $11, $12
)

-- name: release
DELETE FROM astromesh.budget_holds WHERE id = $1

-- name: release_holder
DELETE FROM astromesh.budget_holds WHERE holder = $1

-- name: expire
DELETE FROM astromesh.budget_accounts WHERE expires_at > 0 AND expires_at <= $1

-- name: expire_holds
DELETE FROM astromesh.budget_holds WHERE expires_at <= $1

-- name: erase_owner
DELETE FROM astromesh.budget_accounts WHERE kind = 'session' AND tenant = $1 AND owner = $2 RETURNING 1

-- name: add
INSERT INTO astromesh.budget_accounts AS a VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (kind, tenant, agent, name) DO UPDATE
SET tokens = a.tokens + excluded.tokens, cost_usd = a.cost_usd + excluded.cost_usd,
    tool_calls = a.tool_calls + excluded.tool_calls, wall_seconds = a.wall_seconds + excluded.wall_seconds,
    expires_at = greatest(a.expires_at, excluded.expires_at)
RETURNING tokens, cost_usd, tool_calls, wall_seconds

-- name: renew
-- Skips a hold that ends just now: the end of several holds locks them in another order, which could deadlock.
UPDATE astromesh.budget_holds SET expires_at = $2 WHERE id IN (
    SELECT id FROM astromesh.budget_holds WHERE holder = $1 FOR NO KEY UPDATE SKIP LOCKED)
