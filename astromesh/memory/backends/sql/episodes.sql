-- name: owned
SELECT id, agent, session_id, event FROM astromesh.events
WHERE tenant = $1 AND owner = $2 AND id > $3 AND (expires_at = 0 OR expires_at > $4) ORDER BY id LIMIT $5

-- name: erase
DELETE FROM astromesh.events WHERE tenant = $1 AND agent = $2 AND session_id = $3

-- name: erase_owner
DELETE FROM astromesh.events WHERE id IN (
    SELECT id FROM astromesh.events WHERE tenant = $1 AND owner = $2 LIMIT $3)
RETURNING 1

-- name: expire
DELETE FROM astromesh.events WHERE id IN (
    SELECT id FROM astromesh.events WHERE expires_at > 0 AND expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING 1
