-- name: clear
DELETE FROM session_leases
WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND (expires_at <= ?5 OR holder = ?4)

-- name: take
INSERT INTO session_leases (tenant, agent, session_id, holder, expires_at) VALUES (?1, ?2, ?3, ?4, ?6)
ON CONFLICT (tenant, agent, session_id) DO NOTHING RETURNING token

-- name: renew
UPDATE session_leases SET expires_at = ?2 WHERE token = ?1 RETURNING interrupted
