-- Queries of budgets that are the same in every database.

-- name: spent
SELECT tokens, cost_usd, tool_calls, wall_seconds FROM astromesh.budget_accounts
WHERE kind = $1 AND tenant = $2 AND agent = $3 AND name = $4

-- name: clear
DELETE FROM astromesh.budget_holds
WHERE kind = $1 AND tenant = $2 AND agent = $3 AND name = $4
    AND (expires_at <= $5 OR (run_id = $6 AND holder <> $7))

-- name: held
SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0), coalesce(sum(tool_calls), 0),
    coalesce(sum(wall_seconds), 0)
FROM astromesh.budget_holds
WHERE kind = $1 AND tenant = $2 AND agent = $3 AND name = $4 AND expires_at > $5

-- name: hold
INSERT INTO astromesh.budget_holds VALUES (
    $5, $1, $2, $3, $4, $6, $7, $8, $9, $10, $11, $12
)

-- name: let_go
DELETE FROM astromesh.budget_holds WHERE id = $1

-- name: leave
DELETE FROM astromesh.budget_holds WHERE holder = $1

-- name: expire
DELETE FROM astromesh.budget_accounts WHERE expires_at > 0 AND expires_at <= $1

-- name: expire_holds
DELETE FROM astromesh.budget_holds WHERE expires_at <= $1

-- name: erase_owner
DELETE FROM astromesh.budget_accounts WHERE kind = 'session' AND tenant = $1 AND owner = $2 RETURNING 1
