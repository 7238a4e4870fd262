-- Queries of runs for PostgreSQL alone; they execute concurrent calls as one statement.

-- name: get_all
SELECT {columns} FROM astromesh.runs WHERE run_id = ANY ($1::text[])

-- name: claim
-- A worker that has a run and claims it again gets it again: the answer was lost. A claim renews the lease of its
-- worker, at most once a second. Rows are locked in one order, so that workers that want the same runs do not wait for
-- each other in a circle. The agents $5 are left out.
WITH claims AS (
    SELECT r.id, a.worker AS claimer FROM astromesh.runs r
    JOIN unnest($1::text[], $2::int[], $3::text[]) AS a (run_id, segment, worker)
        ON r.run_id = a.run_id AND r.segment = a.segment
    WHERE (r.status = 'queued' AND r.wake_at <= $4::float8 OR r.status = 'running' AND r.worker = a.worker)
        AND r.durable AND NOT r.agent = ANY ($5::text[])
    ORDER BY r.id FOR NO KEY UPDATE OF r),
claimed AS (
    UPDATE astromesh.runs SET status = 'running', worker = claimer, wake_at = 0.0
    FROM claims
    WHERE runs.id = claims.id
        AND {first_in_session} AND {alone}
    RETURNING {columns}),
alive AS (
    INSERT INTO astromesh.workers
    SELECT DISTINCT claimed.worker, $4::float8 FROM claimed
    WHERE NOT EXISTS (
        SELECT 1 FROM astromesh.workers w WHERE w.worker = claimed.worker AND w.seen_at > $4::float8 - 1.0)
    ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at)
SELECT {columns} FROM claimed

-- name: next_in_session
SELECT a.n, f.run_id, f.segment
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
        WITH ORDINALITY AS a (tenant, agent, session_id, owner, n),
    LATERAL (
        SELECT run_id, segment FROM astromesh.runs r
        WHERE r.tenant = a.tenant AND r.agent = a.agent AND r.session_id = a.session_id AND r.owner = a.owner AND r.ordered
            AND r.status IN ('queued', 'running') AND r.status = 'queued'
        ORDER BY r.id LIMIT 1) f

-- fragment: writes
WITH held AS (
    SELECT r.run_id FROM astromesh.runs r
    JOIN unnest($1::text[], $2::int[], $3::text[]) AS c (run_id, segment, worker)
        ON r.run_id = c.run_id AND r.segment = c.segment AND r.worker = c.worker
    WHERE r.status = 'running'
    ORDER BY r.id FOR NO KEY UPDATE OF r),
stored_steps AS (
    INSERT INTO astromesh.run_steps
    SELECT s.* FROM unnest($4::text[], $5::text[], $6::int[], $7::text[], $8::text[], $9::text[], $10::text[],
            $11::bigint[], $12::float8[], $13::float8[], $14::text[])
        AS s (run_id, path, n, kind, request_hash, state, output, ordinal, started_at, duration_ms, about)
    WHERE s.run_id IN (SELECT run_id FROM held)
    ON CONFLICT (run_id, path, n) DO UPDATE SET kind = excluded.kind, request_hash = excluded.request_hash,
        state = excluded.state, output = excluded.output, ordinal = excluded.ordinal,
        started_at = excluded.started_at, duration_ms = excluded.duration_ms, about = excluded.about),
stored_events AS (
    INSERT INTO astromesh.run_events
    SELECT e.* FROM unnest($15::text[], $16::int[], $17::float8[], $18::text[], $19::text[])
        AS e (run_id, seq, ts, type, data)
    WHERE e.run_id IN (SELECT run_id FROM held)
    ON CONFLICT (run_id, seq) DO NOTHING)

-- name: commit
-- Steps and events of the commits whose runs are still their workers'; each run once. A step or event that is there
-- comes from a commit whose answer was lost.
{writes}
SELECT run_id FROM held

-- name: commit_changes
{writes},
changed AS (
    UPDATE astromesh.runs r SET {assignments}
    FROM unnest($20::text[], {change_parameters}) AS c (run_id, {change_columns})
    WHERE r.run_id = c.run_id AND r.run_id IN (SELECT run_id FROM held))
SELECT run_id FROM held

-- name: add_event
-- A nested run without a row has no events: nothing would delete them.
INSERT INTO astromesh.run_events SELECT $1, $2, $3, $4, $5 WHERE EXISTS (SELECT 1 FROM astromesh.runs WHERE run_id = $1)
ON CONFLICT (run_id, seq) DO NOTHING

-- name: next_of_agent
-- The next run of each tenant.
WITH RECURSIVE {tenants_of_agent}
SELECT f.* FROM t, LATERAL (
    SELECT run_id, segment, runs.tenant, priority, id FROM astromesh.runs
    WHERE {open} AND status = 'queued' AND agent = $1 AND runs.tenant = t.tenant AND wake_at <= $2
        AND {first_in_session} AND {alone}
    ORDER BY priority, id LIMIT 1) f

-- name: redispatch
-- Each tenant with queued runs has an equal share. `= ANY (ARRAY …)`, because PostgreSQL reads the whole table for `IN`.
WITH RECURSIVE {tenants}
UPDATE astromesh.runs SET queued_at = $2
WHERE id = ANY (ARRAY(
    SELECT due.id FROM t, LATERAL (
        SELECT id FROM astromesh.runs
        WHERE {open} AND status = 'queued' AND runs.tenant = t.tenant AND queued_at <= $1
            AND wake_at <= $2 AND NOT agent = ANY ($4::text[])
            AND {first_in_session} AND {alone}
        ORDER BY priority, id LIMIT greatest(1, $3 / greatest(1, (SELECT count(tenant) FROM t))) FOR UPDATE SKIP LOCKED) due
    LIMIT $3))
RETURNING run_id, segment

-- fragment: labels
-- Whether all tags of the array 6 match, and all metadata of the array 7: key, value as JSON text, value as it is.
($6::text = '[]' OR tags::jsonb @> $6::text::jsonb)
    AND ($7::text = '[]' OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements($7::text::jsonb) f
        WHERE coalesce((metadata::jsonb -> (f ->> 0))::text NOT IN (f ->> 1, f ->> 2), TRUE)))
