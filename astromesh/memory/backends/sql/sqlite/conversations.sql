-- name: recall
-- Returns one row for any number of turns: SQLite releases the interpreter lock at every row.
SELECT s.owner, s.last_seq, s.summary, s.upto, (
    SELECT json_group_array(
        json_array(t.role, t.content, t.seq, t.created_at, t.run_id, t.status, t.tokens, t.author))
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

-- name: add_turn
INSERT INTO turns (role, content, seq, created_at, run_id, status, tokens, author, session)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_pair
INSERT INTO turns (role, content, seq, created_at, run_id, status, tokens, author, session)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?), (?, ?, ?, ?, ?, ?, ?, ?, ?)
