-- name: release
DELETE FROM astromesh.session_leases WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND token = $4

-- name: interrupt
UPDATE astromesh.session_leases SET interrupted = TRUE WHERE tenant = $1 AND agent = $2 AND session_id = $3

-- name: holds
SELECT 1 FROM astromesh.session_leases WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND token = $4

-- name: forget
DELETE FROM astromesh.session_leases WHERE expires_at <= $1
