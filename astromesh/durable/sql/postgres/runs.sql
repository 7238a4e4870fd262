-- COLUMNS stands for the columns of a run in the order of `rows.COLUMNS`.

-- name: add
INSERT INTO astromesh.runs (COLUMNS, queued_at) VALUES (VALUES, $31)

-- name: note
INSERT INTO astromesh.runs (COLUMNS, queued_at) VALUES (VALUES, $31) ON CONFLICT (run_id) DO NOTHING

-- name: put_trace
INSERT INTO astromesh.run_traces VALUES ($1, $2) ON CONFLICT (run_id) DO UPDATE SET events = excluded.events

-- name: trace
SELECT COLUMNS, (SELECT events FROM astromesh.run_traces t WHERE t.run_id = r.run_id)
FROM astromesh.runs r WHERE trace_id = $1 ORDER BY id

-- name: get
SELECT COLUMNS FROM astromesh.runs WHERE run_id = $1

-- name: get_all
SELECT COLUMNS FROM astromesh.runs WHERE run_id = ANY ($1::text[])

-- name: lock
SELECT COLUMNS FROM astromesh.runs WHERE run_id = $1 FOR UPDATE

-- name: list
SELECT COLUMNS FROM astromesh.runs
WHERE tenant = $1 AND ($2::text IS NULL OR owner = $2) AND ($3 = '' OR agent = $3)
    AND ($4 = '' OR session_id = $4) AND ($5 = '' OR status = $5)
ORDER BY id DESC LIMIT $6

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
        AND NOT (ordered AND EXISTS (
            SELECT 1 FROM astromesh.runs o
            WHERE o.tenant = runs.tenant AND o.agent = runs.agent
                AND o.session_id = runs.session_id AND o.id < runs.id
                AND o.ordered AND o.status IN ('queued', 'running')))
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

-- name: next_of
SELECT run_id, segment FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'queued' AND agent = $1 AND wake_at <= $2
    AND NOT (ordered AND EXISTS (
        SELECT 1 FROM astromesh.runs o
        WHERE o.tenant = astromesh.runs.tenant AND o.agent = astromesh.runs.agent
            AND o.session_id = astromesh.runs.session_id AND o.id < astromesh.runs.id
            AND o.ordered AND o.status IN ('queued', 'running')))
ORDER BY priority, id LIMIT 1

-- name: queued
SELECT count(*) FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'queued' AND agent = $1

-- name: running
-- Beside one run.
SELECT count(*) FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'running' AND agent = $1 AND run_id <> $2

-- name: agent
SELECT agent FROM astromesh.runs WHERE run_id = $1

-- name: lock_agent
-- Who counts an agent's runs before one more begins lets nobody else begin one meanwhile.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), 'agent', $1::text), 0))

-- name: lock_session
-- Two that come at once to one session: the second sees the first.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), 'session', $1::text, $2::text, $3::text), 0))

-- name: open_of_session
SELECT COLUMNS FROM astromesh.runs
WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND ordered AND status IN ('queued', 'running')
ORDER BY id FOR UPDATE

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

-- name: put_step
INSERT INTO astromesh.run_steps VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (run_id, path, n) DO UPDATE
SET kind = excluded.kind, request_hash = excluded.request_hash, state = excluded.state, output = excluded.output

-- name: put_nested
-- One that has begun, once; one that has ended.
INSERT INTO astromesh.runs (COLUMNS, queued_at) VALUES (VALUES, $31)
ON CONFLICT (run_id) DO UPDATE SET status = excluded.status, finished_at = excluded.finished_at, result = excluded.result,
    error = excluded.error, attempts = excluded.attempts, input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens, cached_tokens = excluded.cached_tokens, cost_usd = excluded.cost_usd,
    estimated = excluded.estimated
WHERE excluded.finished_at > 0

-- name: nested_open
SELECT COLUMNS FROM astromesh.runs WHERE NOT durable AND status = 'running' AND worker = $1 AND parent <> ''

-- name: put_event
INSERT INTO astromesh.run_events SELECT $1, $2, $3, $4, $5 WHERE EXISTS (SELECT 1 FROM astromesh.runs WHERE run_id = $1)
ON CONFLICT (run_id, seq) DO NOTHING

-- name: steps
SELECT path, n, kind, request_hash, state, output FROM astromesh.run_steps WHERE run_id = $1 ORDER BY path, n

-- name: put_last_event
INSERT INTO astromesh.run_events
SELECT $1, coalesce(max(seq), 0) + 1, $2, $3, $4 FROM astromesh.run_events WHERE run_id = $1

-- name: events
SELECT seq, ts, type, data FROM astromesh.run_events WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3

-- name: advance
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', waiting_for = NULL,
    wake_at = 0.0, queued_at = $3
WHERE run_id = $1 AND segment = $2 AND status = 'waiting' RETURNING COLUMNS

-- name: hand_back
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', queued_at = $4
WHERE run_id = $1 AND segment = $2 AND worker = $3 AND status = 'running' RETURNING COLUMNS

-- name: end_idle
UPDATE astromesh.runs SET status = $2, finished_at = $3, error = $4, waiting_for = NULL, wake_at = 0.0
WHERE run_id = $1 AND status IN ('queued', 'running', 'waiting')

-- name: ask_end
UPDATE astromesh.runs SET cancelling = TRUE WHERE run_id = $1 AND status = 'running'

-- name: cancelling
SELECT run_id FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'running' AND worker = $1 AND cancelling

-- name: beat
INSERT INTO astromesh.workers VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at

-- name: leave
DELETE FROM astromesh.workers WHERE worker = $1

-- name: forget_workers
DELETE FROM astromesh.workers WHERE seen_at < $1

-- name: hand_over
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', queued_at = $2
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'running' AND worker = $1
RETURNING run_id, segment

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

-- name: orphans
SELECT COLUMNS FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'running'
    AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $1)
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: requeue
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', waiting_for = NULL,
    wake_at = 0.0, queued_at = $3
WHERE run_id = $1 AND segment = $2 RETURNING run_id, segment

-- name: awake
SELECT COLUMNS FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'waiting' AND wake_at > 0.0
    AND wake_at <= $1
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: stale
UPDATE astromesh.runs SET queued_at = $2
WHERE id IN (
    SELECT id FROM astromesh.runs
    WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'queued' AND queued_at <= $1
        AND wake_at <= $2 AND NOT agent = ANY ($4::text[])
        AND NOT (ordered AND EXISTS (
            SELECT 1 FROM astromesh.runs o WHERE o.tenant = astromesh.runs.tenant AND o.agent = astromesh.runs.agent
                AND o.session_id = astromesh.runs.session_id AND o.id < astromesh.runs.id
                AND o.ordered AND o.status IN ('queued', 'running')))
    ORDER BY priority, id LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING run_id, segment

-- name: waiting
SELECT COLUMNS FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable AND status = 'waiting' AND waiting_for IS NOT NULL
    AND tenant = $1 AND ($2::text IS NULL OR owner = $2)
ORDER BY id LIMIT $3

-- name: expire
DELETE FROM astromesh.runs WHERE id IN (
    SELECT id FROM astromesh.runs WHERE finished_at > 0.0 AND finished_at < $1 LIMIT $2) RETURNING 1

-- name: expire_many
-- The answer to a key is kept as long as the key.
DELETE FROM astromesh.runs WHERE id IN (
    SELECT id FROM astromesh.runs r WHERE finished_at > 0.0
        AND NOT EXISTS (SELECT 1 FROM astromesh.idempotency_keys k WHERE k.run_id = r.run_id)
    ORDER BY finished_at DESC LIMIT $2 OFFSET $1) RETURNING 1

-- name: expire_keys
DELETE FROM astromesh.idempotency_keys WHERE expires_at <= $1

-- name: owned_open
SELECT COLUMNS FROM astromesh.runs
WHERE tenant = $1 AND owner = $2 AND status IN ('queued', 'running', 'waiting') ORDER BY id

-- name: erase_owner
DELETE FROM astromesh.runs
WHERE tenant = $1 AND owner = $2 AND status IN ('completed', 'failed', 'cancelled') RETURNING 1

-- name: erase_keys
DELETE FROM astromesh.idempotency_keys WHERE tenant = $1 AND owner = $2

-- name: lock_key
-- Two that come at once with one key: the second waits for the first.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(chr(31), $1::text, $2::text, $3::text, $4::text), 0))

-- name: key
SELECT body_hash, run_id FROM astromesh.idempotency_keys
WHERE tenant = $1 AND owner = $2 AND route = $3 AND key = $4 AND expires_at > $5

-- name: put_key
INSERT INTO astromesh.idempotency_keys VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, owner, route, key) DO UPDATE
SET body_hash = excluded.body_hash, run_id = excluded.run_id, expires_at = excluded.expires_at

-- name: free_key
DELETE FROM astromesh.idempotency_keys WHERE run_id = $1

-- name: lost
-- Runs of one process that is dead.
SELECT COLUMNS FROM astromesh.runs
WHERE NOT durable AND status = 'running' AND parent = ''
    AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $1)
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: ask_process
INSERT INTO astromesh.run_ends VALUES ($1, $2, $3, $4, NULL)
ON CONFLICT (run_id) DO UPDATE
SET tenant = excluded.tenant, owner = excluded.owner, asked_at = excluded.asked_at, answer = NULL

-- name: asked_processes
SELECT run_id, tenant, owner FROM astromesh.run_ends WHERE answer IS NULL AND asked_at > $1

-- name: answer_process
UPDATE astromesh.run_ends SET answer = $2 WHERE run_id = $1

-- name: answered
SELECT answer FROM astromesh.run_ends WHERE run_id = $1

-- name: forget_asked
DELETE FROM astromesh.run_ends WHERE run_id = $1 OR asked_at < $2
