-- name: record
-- Trims older events only: the statement sees the table as it was when it began.
WITH trimmed AS (
    DELETE FROM astromesh.events WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND id <= (
        SELECT id FROM astromesh.events WHERE tenant = $1 AND agent = $2 AND session_id = $3
        ORDER BY id DESC LIMIT 1 OFFSET greatest($7 - cardinality($6::TEXT[]), 0))
)
INSERT INTO astromesh.events (tenant, agent, session_id, owner, expires_at, event)
SELECT $1, $2, $3, $4, $5, event FROM unnest($6::TEXT[]) WITH ORDINALITY AS e(event, n) ORDER BY n

-- name: recent
SELECT coalesce(json_agg(event), '[]')::TEXT FROM (
    SELECT event FROM astromesh.events
    WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND ($4::TEXT IS NULL OR owner = $4)
        AND (expires_at = 0 OR expires_at > $5)
    ORDER BY id DESC LIMIT greatest($6::INTEGER, 0)) AS newest
