-- Queries of runs of this database alone; the others are in `sql/runs.sql`.

-- name: get_all
SELECT COLUMNS FROM astromesh.runs WHERE run_id = ANY ($1::text[])

-- name: lock
SELECT COLUMNS FROM astromesh.runs WHERE run_id = $1 FOR UPDATE

-- name: used
-- What a nested run used is part of what the one above it used.
SELECT coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint,
    coalesce(sum(cached_tokens), 0)::bigint, coalesce(sum(cost_usd), 0.0), coalesce(bool_or(estimated), FALSE)
FROM astromesh.runs r
WHERE tenant = $1 AND ($2::text IS NULL OR owner = $2) AND ($3 = '' OR agent = $3)
    AND ($4 = '' OR session_id = $4) AND ($5 = '' OR status = $5)
    AND (parent = '' OR NOT EXISTS (
        SELECT 1 FROM astromesh.runs a WHERE a.run_id = split_part(r.parent, '.', 1)
            AND a.tenant = $1 AND ($2::text IS NULL OR a.owner = $2) AND ($3 = '' OR a.agent = $3)
            AND ($4 = '' OR a.session_id = $4) AND ($5 = '' OR a.status = $5)))

-- name: claim
-- One that asks again, because the answer was lost, has it. Whoever claims lives; that is not said every time.
-- Rows are locked in one order, so that two workers that want the same runs do not wait for each other. Runs of the
-- agents $5 are left out.
WITH asked AS (
    SELECT r.id, a.worker AS claimer FROM astromesh.runs r
    JOIN unnest($1::text[], $2::int[], $3::text[]) AS a (run_id, segment, worker)
        ON r.run_id = a.run_id AND r.segment = a.segment
    WHERE (r.status = 'queued' AND r.wake_at <= $4::float8 OR r.status = 'running' AND r.worker = a.worker)
        AND r.durable AND NOT r.agent = ANY ($5::text[])
    ORDER BY r.id FOR NO KEY UPDATE OF r),
claimed AS (
    UPDATE astromesh.runs SET status = 'running', worker = claimer, wake_at = 0.0
    FROM asked
    WHERE runs.id = asked.id
        AND FIRST_IN_SESSION
    RETURNING COLUMNS),
alive AS (
    INSERT INTO astromesh.workers
    SELECT DISTINCT claimed.worker, $4::float8 FROM claimed
    WHERE NOT EXISTS (
        SELECT 1 FROM astromesh.workers w WHERE w.worker = claimed.worker AND w.seen_at > $4::float8 - 1.0)
    ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at)
SELECT COLUMNS FROM claimed

-- name: following
SELECT a.n, f.run_id, f.segment
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS a (tenant, agent, session_id, n),
    LATERAL (
        SELECT run_id, segment FROM astromesh.runs r
        WHERE r.tenant = a.tenant AND r.agent = a.agent AND r.session_id = a.session_id AND r.ordered
            AND r.status IN ('queued', 'running') AND r.status = 'queued'
        ORDER BY r.id LIMIT 1) f

-- name: lock_agent
-- Who counts an agent's runs before one more begins lets nobody else begin one meanwhile.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), 'agent', $1::text), 0))

-- name: lock_session
-- Two that come at once to one session: the second sees the first.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), 'session', $1::text, $2::text, $3::text), 0))

-- name: join_in
UPDATE astromesh.runs SET request = $2, priority = least(priority, $3) WHERE run_id = $1

-- name: kept
-- Steps and events of the commits whose runs are still their workers'. What was written and whose answer was lost
-- may be written again. A run is in it once. Where rows change, `changed` stands in it.
WITH held AS (
    SELECT r.run_id FROM astromesh.runs r
    JOIN unnest($1::text[], $2::int[], $3::text[]) AS c (run_id, segment, worker)
        ON r.run_id = c.run_id AND r.segment = c.segment AND r.worker = c.worker
    WHERE r.status = 'running'
    ORDER BY r.id FOR NO KEY UPDATE OF r),
kept_steps AS (
    INSERT INTO astromesh.run_steps
    SELECT s.* FROM unnest($4::text[], $5::text[], $6::int[], $7::text[], $8::text[], $9::text[], $10::text[])
        AS s (run_id, path, n, kind, request_hash, state, output)
    WHERE s.run_id IN (SELECT run_id FROM held)
    ON CONFLICT (run_id, path, n) DO UPDATE SET kind = excluded.kind, request_hash = excluded.request_hash,
        state = excluded.state, output = excluded.output),
kept_events AS (
    INSERT INTO astromesh.run_events
    SELECT e.* FROM unnest($11::text[], $12::int[], $13::float8[], $14::text[], $15::text[])
        AS e (run_id, seq, ts, type, data)
    WHERE e.run_id IN (SELECT run_id FROM held)
    ON CONFLICT (run_id, seq) DO NOTHING)CHANGED
SELECT run_id FROM held

-- name: changed
, changed AS (
    UPDATE astromesh.runs r SET status = coalesce(c.status, r.status), request = coalesce(c.request, r.request),
        result = coalesce(c.result, r.result), error = coalesce(c.error, r.error),
        attempts = coalesce(c.attempts, r.attempts), waiting_for = coalesce(c.waiting_for, r.waiting_for),
        wake_at = coalesce(c.wake_at, r.wake_at), deadline_at = coalesce(c.deadline_at, r.deadline_at),
        finished_at = coalesce(c.finished_at, r.finished_at),
        input_tokens = coalesce(c.input_tokens, r.input_tokens),
        output_tokens = coalesce(c.output_tokens, r.output_tokens),
        cached_tokens = coalesce(c.cached_tokens, r.cached_tokens),
        cost_usd = coalesce(c.cost_usd, r.cost_usd), estimated = coalesce(c.estimated, r.estimated)
    FROM unnest(
        $16::text[], $17::text[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[], $23::float8[],
        $24::float8[], $25::float8[], $26::bigint[], $27::bigint[], $28::bigint[], $29::float8[], $30::boolean[]
    ) AS c (run_id, status, request, result, error, attempts, waiting_for, wake_at, deadline_at, finished_at,
        input_tokens, output_tokens, cached_tokens, cost_usd, estimated)
    WHERE r.run_id = c.run_id AND r.run_id IN (SELECT run_id FROM held))

-- name: put_event
INSERT INTO astromesh.run_events SELECT $1, $2, $3, $4, $5 WHERE EXISTS (SELECT 1 FROM astromesh.runs WHERE run_id = $1)
ON CONFLICT (run_id, seq) DO NOTHING

-- name: anything_due
-- What `orphans`, `awake`, `lost` or `stale` may find, in one look: most often nothing.
SELECT EXISTS (
    SELECT 1 FROM astromesh.runs
    WHERE status IN ('queued', 'running', 'waiting') AND durable
        AND (status = 'running' AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $2::float8)
            OR status = 'waiting' AND wake_at > 0.0 AND wake_at <= $1::float8
            OR status = 'queued' AND queued_at <= $3::float8 AND wake_at <= $1::float8))
    OR EXISTS (
        SELECT 1 FROM astromesh.runs
        WHERE NOT durable AND status = 'running' AND parent = ''
            AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $2::float8))

-- name: stale
UPDATE astromesh.runs SET queued_at = $2
WHERE id IN (
    SELECT id FROM astromesh.runs
    WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'queued' AND queued_at <= $1
        AND wake_at <= $2 AND NOT agent = ANY ($4::text[])
        AND FIRST_IN_SESSION
    ORDER BY priority, id LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING run_id, segment

-- name: expire
DELETE FROM astromesh.runs WHERE id IN (
    SELECT id FROM astromesh.runs WHERE finished_at > 0.0 AND finished_at < $1 LIMIT $2) RETURNING 1

-- name: expire_many
-- The answer to a key is kept as long as the key.
DELETE FROM astromesh.runs WHERE id IN (
    SELECT id FROM astromesh.runs r WHERE finished_at > 0.0
        AND NOT EXISTS (SELECT 1 FROM astromesh.idempotency_keys k WHERE k.run_id = r.run_id)
    ORDER BY finished_at DESC LIMIT $2 OFFSET $1) RETURNING 1

-- name: erase_owner
DELETE FROM astromesh.runs
WHERE tenant = $1 AND owner = $2 AND status IN ('completed', 'failed', 'cancelled') RETURNING 1

-- name: lock_key
-- Two that come at once with one key: the second waits for the first.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), $1::text, $2::text, $3::text, $4::text), 0))
