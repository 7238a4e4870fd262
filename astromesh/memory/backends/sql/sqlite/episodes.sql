-- name: record
INSERT INTO events (tenant, agent, session_id, owner, expires_at, event)
SELECT ?1, ?2, ?3, ?4, ?5, value FROM json_each(?6)

-- name: trim
DELETE FROM events WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND id <= (
    SELECT id FROM events WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 ORDER BY id DESC LIMIT 1 OFFSET ?4)

-- name: recent
-- One row whatever the number of events: SQLite gives the interpreter lock away at every row.
SELECT json_group_array(event) FROM (
    SELECT event FROM events
    WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND (?4 IS NULL OR owner = ?4)
        AND (expires_at = 0 OR expires_at > ?5)
    ORDER BY id DESC LIMIT max(?6, 0))

-- name: owned
SELECT id, agent, session_id, event FROM events
WHERE tenant = ?1 AND owner = ?2 AND id > ?3 AND (expires_at = 0 OR expires_at > ?4) ORDER BY id LIMIT ?5

-- name: erase
DELETE FROM events WHERE tenant = ? AND agent = ? AND session_id = ?

-- name: erase_owner
DELETE FROM events WHERE id IN (SELECT id FROM events WHERE tenant = ? AND owner = ? LIMIT ?)

-- name: expire
DELETE FROM events WHERE id IN (SELECT id FROM events WHERE expires_at > 0 AND expires_at <= ? LIMIT ?)
