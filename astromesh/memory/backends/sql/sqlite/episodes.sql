-- name: record
INSERT INTO events (tenant, agent, session_id, owner, expires_at, event)
SELECT ?1, ?2, ?3, ?4, ?5, value FROM json_each(?6)

-- name: trim
DELETE FROM events WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND id <= (
    SELECT id FROM events WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 ORDER BY id DESC LIMIT 1 OFFSET ?4)

-- name: recent
-- Returns one row for any number of events: SQLite releases the interpreter lock at every row.
SELECT json_group_array(event) FROM (
    SELECT event FROM events
    WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND (?4 IS NULL OR owner = ?4)
        AND (expires_at = 0 OR expires_at > ?5)
    ORDER BY id DESC LIMIT max(?6, 0))
