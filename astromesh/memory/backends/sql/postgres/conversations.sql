-- Every key is (tenant, agent, session_id); a session whose time is over does not exist.

-- name: recall
SELECT s.owner, s.last_seq, s.summary, s.upto, ARRAY(
    SELECT ROW(t.role, t.content, t.seq, t.created_at, t.run_id, t.status, t.tokens)
    FROM astromesh.turns t WHERE t.session = s.id AND t.seq > s.last_seq - $5 ORDER BY t.seq)
FROM astromesh.sessions s
WHERE s.tenant = $1 AND s.agent = $2 AND s.session_id = $3 AND (s.expires_at = 0 OR s.expires_at > $4)

-- name: append
-- One statement, one round trip: the row of the session is locked, so that writers number their turns in turn.
-- So is the lease, where there is one: who takes it over waits for the turns that are written under it.
WITH lease AS (
    SELECT 1 FROM astromesh.session_leases
    WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND token = $13 FOR UPDATE
), session AS (
    INSERT INTO astromesh.sessions AS s
        (tenant, agent, session_id, owner, last_seq, created_at, updated_at, expires_at)
    SELECT $1, $2, $3, $4, cardinality($7::TEXT[]), $5, $5, $6
    WHERE $13::BIGINT = 0 OR EXISTS (SELECT 1 FROM lease)
    ON CONFLICT (tenant, agent, session_id) DO UPDATE
    SET last_seq = s.last_seq + excluded.last_seq, updated_at = excluded.updated_at, expires_at = excluded.expires_at
    WHERE s.owner = excluded.owner AND (s.expires_at = 0 OR s.expires_at > excluded.updated_at)
    RETURNING s.id, s.last_seq
), written AS (
    INSERT INTO astromesh.turns (session, seq, role, content, created_at, run_id, status, tokens)
    SELECT session.id, session.last_seq - cardinality($7::TEXT[]) + t.n,
        t.role, t.content, t.created_at, t.run_id, t.status, t.tokens
    FROM session, unnest($7::TEXT[], $8::TEXT[], $9::DOUBLE PRECISION[], $10::TEXT[], $11::TEXT[], $12::INTEGER[])
        WITH ORDINALITY AS t(role, content, created_at, run_id, status, tokens, n)
)
SELECT last_seq FROM session

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
SELECT t.role, t.content, t.seq, t.created_at, t.run_id, t.status, t.tokens
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
-- Several processes sweep at once: none waits for another, nor for a run that writes.
DELETE FROM astromesh.sessions WHERE id IN (
    SELECT id FROM astromesh.sessions WHERE expires_at > 0 AND expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING 1
