-- Every key is (tenant, agent, session_id); a session whose time is over does not exist.

-- name: recall
-- One row whatever the number of turns: SQLite gives the interpreter lock away at every row.
SELECT s.owner, s.last_seq, s.summary, s.upto, (
    SELECT json_group_array(
        json_array(t.role, t.content, t.seq, t.created_at, t.run_id, t.status, t.tokens))
    FROM turns t WHERE t.session = s.id AND t.seq > s.last_seq - ?5)
FROM sessions s
WHERE s.tenant = ?1 AND s.agent = ?2 AND s.session_id = ?3 AND (s.expires_at = 0 OR s.expires_at > ?4)

-- name: advance
INSERT INTO sessions (tenant, agent, session_id, owner, last_seq, created_at, updated_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7)
ON CONFLICT (tenant, agent, session_id) DO UPDATE
SET last_seq = last_seq + excluded.last_seq, updated_at = excluded.updated_at, expires_at = excluded.expires_at
WHERE owner = excluded.owner AND (sessions.expires_at = 0 OR sessions.expires_at > excluded.updated_at)
RETURNING id, last_seq

-- name: written
SELECT 1 FROM sessions s JOIN turns t ON t.session = s.id
WHERE s.tenant = ? AND s.agent = ? AND s.session_id = ? AND t.run_id = ? AND (s.expires_at = 0 OR s.expires_at > ?)
LIMIT 1

-- name: add_turn
INSERT INTO turns (role, content, seq, created_at, run_id, status, tokens, session) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_pair
INSERT INTO turns (role, content, seq, created_at, run_id, status, tokens, session)
VALUES (?, ?, ?, ?, ?, ?, ?, ?), (?, ?, ?, ?, ?, ?, ?, ?)

-- name: erase_expired
DELETE FROM sessions
WHERE tenant = ? AND agent = ? AND session_id = ? AND expires_at > 0 AND expires_at <= ?

-- name: summarise
UPDATE sessions SET summary = ?4, upto = ?5
WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND upto < ?5 AND last_seq >= ?5

-- name: page
SELECT t.role, t.content, t.seq, t.created_at, t.run_id, t.status, t.tokens
FROM sessions s JOIN turns t ON t.session = s.id
WHERE s.tenant = ? AND s.agent = ? AND s.session_id = ? AND (s.expires_at = 0 OR s.expires_at > ?) AND t.seq > ?
ORDER BY t.seq LIMIT ?

-- name: info
SELECT session_id, owner, last_seq, created_at, updated_at FROM sessions
WHERE tenant = ? AND agent = ? AND session_id = ? AND (expires_at = 0 OR expires_at > ?)

-- name: list
SELECT session_id, owner, last_seq, created_at, updated_at FROM sessions
WHERE tenant = ?1 AND agent = ?2 AND session_id > ?3 AND (expires_at = 0 OR expires_at > ?4)
ORDER BY session_id LIMIT ?5

-- name: list_owned
SELECT session_id, owner, last_seq, created_at, updated_at FROM sessions
WHERE tenant = ?1 AND agent = ?2 AND session_id > ?3 AND (expires_at = 0 OR expires_at > ?4) AND owner = ?6
ORDER BY session_id LIMIT ?5

-- name: owned
SELECT tenant, agent, session_id FROM sessions
WHERE tenant = ?1 AND owner = ?2 AND (agent, session_id) > (?3, ?4) AND (expires_at = 0 OR expires_at > ?5)
ORDER BY agent, session_id LIMIT ?6

-- name: erase
DELETE FROM sessions WHERE tenant = ? AND agent = ? AND session_id = ?

-- name: erase_owner
DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE tenant = ? AND owner = ? LIMIT ?)

-- name: expire
DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at > 0 AND expires_at <= ? LIMIT ?)
