-- name: add
INSERT INTO api_keys (id, name, digest, scopes, user_id, tenant_id, created_at, expires_at, change)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(change), 0) + 1 FROM api_keys))

-- name: all
SELECT id, name, digest, scopes, user_id, tenant_id, created_at, expires_at, revoked_at, last_used_at, change
FROM api_keys ORDER BY created_at, id

-- name: changed
SELECT id, name, digest, scopes, user_id, tenant_id, created_at, expires_at, revoked_at, last_used_at, change
FROM api_keys WHERE change > ? ORDER BY change

-- name: subject
-- The principal of the oldest key of this name. A key that names a user has that user's.
SELECT user_id FROM api_keys WHERE name = ?1 AND tenant_id = ?2 AND user_id IN ('key:' || id, 'key:' || name)
ORDER BY created_at, id LIMIT 1

-- name: revoke
UPDATE api_keys SET revoked_at = ?2, change = (SELECT max(change) + 1 FROM api_keys)
WHERE id = ?1 AND revoked_at = 0

-- name: exists
SELECT 1 FROM api_keys WHERE id = ?

-- name: used
UPDATE api_keys SET last_used_at = max(last_used_at, ?2) WHERE id = ?1
