-- Every key is (tenant, agent, session_id); an expired session does not exist.

-- name: written
SELECT 1 FROM astromesh.sessions s JOIN astromesh.turns t ON t.session = s.id
WHERE s.tenant = $1 AND s.agent = $2 AND s.session_id = $3 AND t.run_id = $4
    AND (s.expires_at = 0 OR s.expires_at > $5)
LIMIT 1

-- name: erase_expired
DELETE FROM astromesh.sessions
WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND expires_at > 0 AND expires_at <= $4
RETURNING 1

-- name: summarise
UPDATE astromesh.sessions SET summary = $4, upto = $5
WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND upto < $5 AND last_seq >= $5

-- name: page
SELECT t.role, t.content, t.seq, t.created_at, t.run_id, t.status, t.tokens, t.author
FROM astromesh.sessions s JOIN astromesh.turns t ON t.session = s.id
WHERE s.tenant = $1 AND s.agent = $2 AND s.session_id = $3 AND (s.expires_at = 0 OR s.expires_at > $4) AND t.seq > $5
ORDER BY t.seq LIMIT $6

-- name: info
SELECT session_id, owner, last_seq, created_at, updated_at FROM astromesh.sessions
WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND (expires_at = 0 OR expires_at > $4)

-- name: list
SELECT session_id, owner, last_seq, created_at, updated_at FROM astromesh.sessions
WHERE tenant = $1 AND agent = $2 AND session_id > $3 AND (expires_at = 0 OR expires_at > $4)
ORDER BY session_id LIMIT $5

-- name: list_owned
SELECT session_id, owner, last_seq, created_at, updated_at FROM astromesh.sessions
WHERE tenant = $1 AND agent = $2 AND session_id > $3 AND (expires_at = 0 OR expires_at > $4) AND owner = $6
ORDER BY session_id LIMIT $5

-- name: owned
SELECT tenant, agent, session_id FROM astromesh.sessions
WHERE tenant = $1 AND owner = $2 AND (agent, session_id) > ($3, $4) AND (expires_at = 0 OR expires_at > $5)
ORDER BY agent, session_id LIMIT $6

-- name: erase
DELETE FROM astromesh.sessions WHERE tenant = $1 AND agent = $2 AND session_id = $3 RETURNING 1

-- name: erase_owner
DELETE FROM astromesh.sessions WHERE id IN (
    SELECT id FROM astromesh.sessions WHERE tenant = $1 AND owner = $2 LIMIT $3)
RETURNING 1

-- name: expire
-- Several processes may sweep at once: none waits for another or for a run that writes.
DELETE FROM astromesh.sessions WHERE id IN (
    SELECT id FROM astromesh.sessions WHERE expires_at > 0 AND expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING 1
