-- name: recall
SELECT s.owner, s.last_seq, s.summary, s.upto, ARRAY(
    SELECT ROW(t.role, t.content, t.seq, t.created_at, t.run_id, t.status, t.tokens, t.author)
    FROM astromesh.turns t WHERE t.session = s.id AND t.seq > s.last_seq - $5 ORDER BY t.seq)
FROM astromesh.sessions s
WHERE s.tenant = $1 AND s.agent = $2 AND s.session_id = $3 AND (s.expires_at = 0 OR s.expires_at > $4)

-- name: append
-- One statement, one round trip. It locks the row of the session, so that concurrent writers number their turns one after
-- the other. It locks the lease as well: a process that takes it over waits for the turns that are written under it.
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
    INSERT INTO astromesh.turns (session, seq, role, content, created_at, run_id, status, tokens, author)
    SELECT session.id, session.last_seq - cardinality($7::TEXT[]) + t.n,
        t.role, t.content, t.created_at, t.run_id, t.status, t.tokens, t.author
    FROM session, unnest($7::TEXT[], $8::TEXT[], $9::DOUBLE PRECISION[], $10::TEXT[], $11::TEXT[], $12::INTEGER[],
        $14::TEXT[]) WITH ORDINALITY AS t(role, content, created_at, run_id, status, tokens, author, n)
)
SELECT last_seq FROM session
