-- Queries of runs for both databases, written for PostgreSQL (astromesh/storage/queries.py). {columns} are the columns
-- of a run; {values} are their parameters, and at their end that of `queued_at` (serialization.py). {open} has the words of the
-- index `runs_open`. {first_in_session}: no older ordered run of the session is queued or running.

-- fragment: open
status IN ('queued', 'running', 'waiting') AND durable = TRUE

-- fragment: first_in_session
NOT (ordered AND EXISTS (
    SELECT 1 FROM astromesh.runs o
    WHERE o.tenant = runs.tenant AND o.agent = runs.agent AND o.session_id = runs.session_id
        AND o.owner = runs.owner AND o.id < runs.id AND o.ordered = TRUE AND o.status IN ('queued', 'running')))

-- fragment: alone
-- Runs whose process died twice without a step between are executed one at a time, the oldest first.
NOT (deaths >= 2 AND EXISTS (
    SELECT 1 FROM astromesh.runs o
    WHERE o.status IN ('queued', 'running', 'waiting') AND o.durable = TRUE
        AND o.status <> 'waiting' AND o.deaths >= 2 AND o.id < runs.id))

-- fragment: tenants
-- Those with queued runs, and NULL. An index finds one after the other.
t (tenant) AS (
    SELECT min(tenant) FROM astromesh.runs WHERE status = 'queued' AND durable = TRUE
    UNION ALL
    SELECT (SELECT min(tenant) FROM astromesh.runs
        WHERE status = 'queued' AND durable = TRUE AND tenant > t.tenant)
    FROM t WHERE t.tenant IS NOT NULL)

-- fragment: tenants_of_agent
t (tenant) AS (
    SELECT min(tenant) FROM astromesh.runs WHERE status = 'queued' AND durable = TRUE AND agent = $1
    UNION ALL
    SELECT (SELECT min(tenant) FROM astromesh.runs
        WHERE status = 'queued' AND durable = TRUE AND agent = $1 AND tenant > t.tenant)
    FROM t WHERE t.tenant IS NOT NULL)

-- fragment: matches
-- What a caller asks for: the values 1 to 11 of `_where` (sql_runs.py).
tenant = $1 AND ($2::text IS NULL OR owner = $2) AND ($3 = '' OR agent = $3)
    AND ($4 = '' OR session_id = $4) AND ($5 = '' OR status = $5) AND {labels}
    AND run_id >= $8 AND ($9 = '' OR run_id < $9) AND cost_usd >= $10
    AND ($11 = 0.0 OR finished_at - created_at >= $11)

-- name: add
INSERT INTO astromesh.runs ({columns}, queued_at) VALUES ({values})

-- name: archive
INSERT INTO astromesh.runs ({columns}, queued_at) VALUES ({values}) ON CONFLICT (run_id) DO NOTHING

-- name: store_trace
INSERT INTO astromesh.run_traces VALUES ($1, $2) ON CONFLICT (run_id) DO UPDATE SET events = excluded.events

-- name: store_recording
UPDATE astromesh.runs SET request = $2, manifest = $3, caller = $4 WHERE run_id = $1

-- name: delete_steps
DELETE FROM astromesh.run_steps WHERE run_id = $1

-- name: forget_request
UPDATE astromesh.runs SET request = '{}' WHERE run_id = $1

-- name: expire_steps
DELETE FROM astromesh.run_steps WHERE run_id IN (
    SELECT run_id FROM astromesh.runs r WHERE finished_at > 0.0 AND finished_at < $1
        AND EXISTS (SELECT 1 FROM astromesh.run_steps s WHERE s.run_id = r.run_id) LIMIT $2) RETURNING 1

-- name: trace
SELECT {columns}, (SELECT events FROM astromesh.run_traces t WHERE t.run_id = r.run_id)
FROM astromesh.runs r WHERE trace_id = $1 ORDER BY id

-- name: get
SELECT {columns} FROM astromesh.runs WHERE run_id = $1

-- name: list
SELECT {columns} FROM astromesh.runs
WHERE {matches} AND ($13 = '' OR run_id < $13)
ORDER BY run_id DESC LIMIT $12

-- name: count
SELECT count(*) FROM astromesh.runs
WHERE {matches}

-- name: queued
-- A run that is accepted for later is not ordered and does not count before its time.
SELECT count(*), coalesce(min(greatest(created_at, wake_at)), 0.0) FROM astromesh.runs
WHERE {open} AND status = 'queued' AND agent = $1 AND tenant = $3 AND (ordered OR wake_at <= $2)

-- name: running
-- Without the run $2.
SELECT count(*) FROM astromesh.runs
WHERE {open} AND status = 'running' AND agent = $1 AND run_id <> $2

-- name: queues
-- A run that is accepted for later waits for its time, not for room.
SELECT agent,
    count(CASE WHEN status = 'queued' AND (ordered OR wake_at <= $1) THEN 1 END),
    count(CASE WHEN status = 'queued' AND NOT ordered AND wake_at > $1 THEN 1 END),
    count(CASE WHEN status = 'running' THEN 1 END),
    count(CASE WHEN status = 'waiting' THEN 1 END),
    min(CASE WHEN status = 'queued' AND (ordered OR wake_at <= $1) THEN greatest(created_at, wake_at) END)
FROM astromesh.runs WHERE {open} AND parent = '' GROUP BY agent ORDER BY agent

-- name: live_workers
SELECT w.worker, w.seen_at, (
    SELECT count(*) FROM astromesh.runs r
    WHERE r.status = 'running' AND r.durable = TRUE AND r.parent = '' AND r.worker = w.worker)
FROM astromesh.workers w WHERE w.seen_at > $1 ORDER BY w.worker

-- name: agent_of
SELECT agent FROM astromesh.runs WHERE run_id = $1

-- name: open_of_session
SELECT {columns} FROM astromesh.runs
WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND owner = $4 AND ordered = TRUE
    AND status IN ('queued', 'running')
ORDER BY id FOR UPDATE

-- name: store_step
INSERT INTO astromesh.run_steps VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (run_id, path, n) DO UPDATE
SET kind = excluded.kind, request_hash = excluded.request_hash, state = excluded.state, output = excluded.output,
    ordinal = excluded.ordinal, started_at = excluded.started_at, duration_ms = excluded.duration_ms,
    about = excluded.about

-- name: store_nested
-- A nested run that has begun is stored once; its end replaces that.
INSERT INTO astromesh.runs ({columns}, queued_at) VALUES ({values})
ON CONFLICT (run_id) DO UPDATE SET status = excluded.status, finished_at = excluded.finished_at, result = excluded.result,
    error = excluded.error, attempts = excluded.attempts, input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens, cached_tokens = excluded.cached_tokens, cost_usd = excluded.cost_usd,
    estimated = excluded.estimated, reasoning_tokens = excluded.reasoning_tokens,
    cache_write_tokens = excluded.cache_write_tokens
WHERE excluded.finished_at > 0

-- name: open_of_parent
SELECT {columns} FROM astromesh.runs WHERE durable = FALSE AND status = 'running' AND worker = $1 AND parent <> ''

-- name: steps
SELECT path, n, kind, request_hash, state, output, ordinal, started_at, duration_ms, about
FROM astromesh.run_steps WHERE run_id = $1 ORDER BY path, n

-- name: add_last_event
INSERT INTO astromesh.run_events
SELECT $1, coalesce(max(seq), 0) + 1, $2, $3, $4 FROM astromesh.run_events WHERE run_id = $1

-- name: events
SELECT seq, ts, type, data FROM astromesh.run_events WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3

-- name: advance
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', waiting_for = NULL,
    wake_at = 0.0, queued_at = $3
WHERE run_id = $1 AND segment = $2 AND status = 'waiting' RETURNING {columns}

-- name: requeue_claimed
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', queued_at = $4
WHERE run_id = $1 AND segment = $2 AND worker = $3 AND status = 'running' RETURNING {columns}

-- name: raw
-- Runs that ended with texts in their record which the rules of their agents have not passed.
SELECT {columns} FROM astromesh.runs WHERE raw = TRUE ORDER BY id LIMIT $1

-- name: settle_raw
UPDATE astromesh.runs SET raw = FALSE WHERE run_id = $1 AND raw = TRUE

-- name: redact_step
UPDATE astromesh.run_steps SET output = $4, request_hash = '' WHERE run_id = $1 AND path = $2 AND n = $3

-- name: redact_event
UPDATE astromesh.run_events SET data = $3 WHERE run_id = $1 AND seq = $2

-- name: end
UPDATE astromesh.runs SET status = $2, finished_at = $3, error = $4, waiting_for = NULL, wake_at = 0.0, raw = durable
WHERE run_id = $1 AND status IN ('queued', 'running', 'waiting')

-- name: request_cancel
UPDATE astromesh.runs SET cancelling = TRUE WHERE run_id = $1 AND status = 'running'

-- name: cancelling
SELECT run_id FROM astromesh.runs
WHERE {open} AND status = 'running' AND worker = $1 AND cancelling = TRUE

-- name: heartbeat
INSERT INTO astromesh.workers VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at

-- name: delete_worker
DELETE FROM astromesh.workers WHERE worker = $1

-- name: expire_workers
DELETE FROM astromesh.workers WHERE seen_at < $1

-- name: requeue_of_worker
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', queued_at = $2, deaths = deaths + $3
WHERE {open} AND status = 'running' AND worker = $1
RETURNING {columns}

-- name: anything_due
-- Whether `orphaned`, `woken`, `interrupted` or `redispatch` may find a run. Most often none does. A process without room
-- does not look at queued runs ($3 is before all times).
SELECT EXISTS (
    SELECT 1 FROM astromesh.runs
    WHERE {open} AND status IN ('running', 'waiting')
        AND (status = 'running' AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $2::float8)
            OR status = 'waiting' AND (wake_at > 0.0 AND wake_at <= $1::float8 OR cancelling = TRUE)))
    OR $3::float8 > 0.0 AND EXISTS (
        SELECT 1 FROM astromesh.runs
        WHERE {open} AND status = 'queued' AND queued_at <= $3::float8 AND wake_at <= $1::float8)
    OR EXISTS (
        SELECT 1 FROM astromesh.runs
        WHERE durable = FALSE AND status = 'running' AND parent = ''
            AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $2::float8))

-- name: orphaned
SELECT {columns} FROM astromesh.runs
WHERE {open} AND status = 'running'
    AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $1)
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: requeue
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', waiting_for = NULL,
    wake_at = 0.0, queued_at = $3, deaths = deaths + $4
WHERE run_id = $1 AND segment = $2 RETURNING {columns}

-- name: woken
-- A run whose end was requested may have begun to wait before its worker looked for requests.
SELECT {columns} FROM astromesh.runs
WHERE {open} AND status = 'waiting' AND (wake_at > 0.0 AND wake_at <= $1 OR cancelling = TRUE)
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: waiting
SELECT agent, session_id, waiting_for FROM astromesh.runs
WHERE {open} AND status = 'waiting' AND waiting_for IS NOT NULL
    AND tenant = $1 AND ($2::text IS NULL OR owner = $2)
ORDER BY id LIMIT $3

-- name: expire_keys
DELETE FROM astromesh.idempotency_keys WHERE expires_at <= $1

-- name: open_of_owner
SELECT {columns} FROM astromesh.runs
WHERE tenant = $1 AND owner = $2 AND status IN ('queued', 'running', 'waiting') ORDER BY id

-- name: erase_keys
DELETE FROM astromesh.idempotency_keys WHERE tenant = $1 AND owner = $2

-- name: key
SELECT body_hash, run_id FROM astromesh.idempotency_keys
WHERE tenant = $1 AND owner = $2 AND route = $3 AND key = $4 AND expires_at > $5

-- name: store_key
INSERT INTO astromesh.idempotency_keys VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, owner, route, key) DO UPDATE
SET body_hash = excluded.body_hash, run_id = excluded.run_id, expires_at = excluded.expires_at

-- name: free_key
DELETE FROM astromesh.idempotency_keys WHERE run_id = $1

-- name: interrupted
-- Runs that are not durable, of processes that are dead.
SELECT {columns} FROM astromesh.runs
WHERE durable = FALSE AND status = 'running' AND parent = ''
    AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $1)
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: add_cancel_request
-- The names are those of older versions: `run_id` is the id of the request, `asked_at` its time.
INSERT INTO astromesh.run_ends VALUES ($1, $2, $3, $4, NULL)

-- name: cancel_requests
SELECT run_id, tenant, owner FROM astromesh.run_ends WHERE answer IS NULL AND asked_at > $1

-- name: answer_cancel
UPDATE astromesh.run_ends SET answer = $2 WHERE run_id = $1

-- name: cancel_answer
SELECT answer FROM astromesh.run_ends WHERE run_id = $1

-- name: delete_cancel
DELETE FROM astromesh.run_ends WHERE run_id = $1 OR asked_at < $2

-- name: request_events
INSERT INTO astromesh.run_listeners VALUES ($1, $2, $3, $4, 0.0, 0)
ON CONFLICT (run_id, tenant, owner) DO UPDATE SET asked_at = excluded.asked_at

-- name: event_requests
SELECT run_id, tenant, owner FROM astromesh.run_listeners WHERE asked_at > $1

-- name: accept_events
UPDATE astromesh.run_listeners SET accepted_at = $4, since = $5 WHERE run_id = $1 AND tenant = $2 AND owner = $3

-- name: events_accepted
SELECT accepted_at, since FROM astromesh.run_listeners WHERE run_id = $1 AND tenant = $2 AND owner = $3

-- name: write_heard
INSERT INTO astromesh.heard_events VALUES ($1, $2, $3, $4, $5) ON CONFLICT (run_id, seq) DO NOTHING

-- name: heard
SELECT seq, ts, type, data FROM astromesh.heard_events WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3

-- name: request_state
INSERT INTO astromesh.run_lookups VALUES ($1, $2, $3, $4, $5, NULL)

-- name: state_requests
SELECT id, run_id, tenant, owner FROM astromesh.run_lookups WHERE answer IS NULL AND asked_at > $1

-- name: answer_state
UPDATE astromesh.run_lookups SET answer = $2 WHERE id = $1

-- name: state_answer
SELECT answer FROM astromesh.run_lookups WHERE id = $1

-- name: delete_lookup
DELETE FROM astromesh.run_lookups WHERE id = $1 OR asked_at < $2

-- name: expire_listeners
DELETE FROM astromesh.run_listeners WHERE asked_at < $1

-- name: expire_heard
DELETE FROM astromesh.heard_events WHERE run_id NOT IN (SELECT run_id FROM astromesh.run_listeners)

-- name: usage
-- The usage of a nested run is part of the usage of its parent.
SELECT coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint,
    coalesce(sum(cached_tokens), 0)::bigint, coalesce(sum(cost_usd), 0.0), coalesce(bool_or(estimated), FALSE),
    coalesce(sum(reasoning_tokens), 0)::bigint, coalesce(sum(cache_write_tokens), 0)::bigint
FROM astromesh.runs r
WHERE {matches}
    AND (parent = '' OR NOT EXISTS (
        SELECT 1 FROM astromesh.runs a WHERE a.run_id = split_part(r.parent, '.', 1)
            AND a.tenant = $1 AND ($2::text IS NULL OR a.owner = $2) AND ($3 = '' OR a.agent = $3)
            AND ($4 = '' OR a.session_id = $4) AND ($5 = '' OR a.status = $5) AND a.run_id >= $8))

-- name: samples
-- The id of a run begins with its time. A nested run is part of the run above it.
SELECT created_at, finished_at, status, input_tokens + output_tokens, cost_usd FROM astromesh.runs
WHERE run_id >= $3 AND tenant = $1 AND ($2::text IS NULL OR owner = $2) AND parent = ''
ORDER BY run_id DESC LIMIT $4

-- name: totals
SELECT count(*), coalesce(sum(CASE WHEN status = 'failed' THEN 1 ELSE 0 END), 0)::bigint,
    coalesce(sum(input_tokens + output_tokens), 0)::bigint, coalesce(sum(cost_usd), 0.0)
FROM astromesh.runs
WHERE run_id >= $3 AND tenant = $1 AND ($2::text IS NULL OR owner = $2) AND parent = ''

-- name: merge
UPDATE astromesh.runs SET request = $2, priority = least(priority, $3) WHERE run_id = $1

-- name: expire
DELETE FROM astromesh.runs WHERE id IN (
    SELECT id FROM astromesh.runs WHERE finished_at > 0.0 AND finished_at < $1 LIMIT $2) RETURNING 1

-- name: expire_many
-- A run with an idempotency key stays as long as the key.
DELETE FROM astromesh.runs WHERE id IN (
    SELECT id FROM astromesh.runs r WHERE finished_at > 0.0
        AND NOT EXISTS (SELECT 1 FROM astromesh.idempotency_keys k WHERE k.run_id = r.run_id)
    ORDER BY finished_at DESC LIMIT $2 OFFSET $1) RETURNING 1

-- name: withdraw
DELETE FROM astromesh.runs
WHERE run_id = $1 AND segment = $2 AND worker = $3 AND status = 'running' AND durable = FALSE

-- name: delete
DELETE FROM astromesh.runs WHERE (run_id = $1 OR (parent <> '' AND worker = $1))
    AND status IN ('completed', 'failed', 'cancelled')

-- name: store_attachment
INSERT INTO astromesh.attachments (tenant, sha256, content) VALUES ($1, $2, $3)
ON CONFLICT (tenant, sha256) DO UPDATE SET content = EXCLUDED.content

-- name: refer_to_attachment
-- A fork refers to what its run had, if that is still there.
INSERT INTO astromesh.run_attachments (run_id, tenant, sha256)
SELECT $1, a.tenant, a.sha256 FROM astromesh.attachments a WHERE a.tenant = $2 AND a.sha256 = $3
ON CONFLICT (run_id, sha256) DO NOTHING

-- name: attachments
SELECT a.sha256, a.content FROM astromesh.run_attachments r
JOIN astromesh.attachments a ON a.tenant = r.tenant AND a.sha256 = r.sha256
WHERE r.run_id = $1

-- name: erase_attachments
DELETE FROM astromesh.run_attachments WHERE run_id IN (
    SELECT run_id FROM astromesh.runs WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND owner = $4)

-- name: erase_owner
DELETE FROM astromesh.runs
WHERE tenant = $1 AND owner = $2 AND status IN ('completed', 'failed', 'cancelled')

-- name: lock
SELECT {columns} FROM astromesh.runs WHERE run_id = $1 FOR UPDATE

-- name: add_callback
INSERT INTO astromesh.callbacks (run_id, url, events, headers, publisher, name) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (run_id, url) DO NOTHING

-- name: callbacks_of
SELECT url, events, headers, publisher, name FROM astromesh.callbacks
WHERE run_id = $1 AND publisher = $2 ORDER BY id

-- name: delete_deliveries
DELETE FROM astromesh.callback_deliveries WHERE run_id = $1 AND callback IN (
    SELECT id FROM astromesh.callbacks WHERE run_id = $1 AND publisher = $2 AND name = $3)

-- name: delete_callback
DELETE FROM astromesh.callbacks WHERE run_id = $1 AND publisher = $2 AND name = $3

-- fragment: schedule_columns
id, tenant, owner, caller, kind, target, request, cron, timezone, jitter, on_missed, from_file, paused, created_at,
instant, due_at, last_at, last_id, error

-- name: add_schedule
-- That of a file keeps its time and its pause.
INSERT INTO astromesh.schedules ({schedule_columns})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
ON CONFLICT (id) DO UPDATE SET jitter = excluded.jitter, on_missed = excluded.on_missed

-- name: count_schedules
SELECT count(*) FROM astromesh.schedules WHERE tenant = $1 AND owner = $2 AND from_file = 0

-- name: file_schedules
SELECT id, kind, target FROM astromesh.schedules WHERE from_file = 1

-- name: take_schedules
-- One that is taken is due again if the process that has it dies.
UPDATE astromesh.schedules SET due_at = $2
WHERE id IN (
    SELECT id FROM astromesh.schedules WHERE paused = 0 AND due_at <= $1
    ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING {schedule_columns}

-- name: next_schedule
SELECT min(due_at) FROM astromesh.schedules WHERE paused = 0

-- name: settle_schedule
UPDATE astromesh.schedules SET instant = $3, due_at = $4, last_at = $5, last_id = $6, error = $7
WHERE id = $1 AND instant = $2

-- name: shorten_key
UPDATE astromesh.idempotency_keys SET expires_at = $2 WHERE run_id = $1 AND expires_at > $2

-- name: postpone_schedule
UPDATE astromesh.schedules SET due_at = $3, error = $4 WHERE id = $1 AND instant = $2

-- name: schedule
SELECT {schedule_columns} FROM astromesh.schedules
WHERE id = $1 AND tenant = $2 AND ($3::text IS NULL OR owner = $3)

-- name: schedules
SELECT {schedule_columns} FROM astromesh.schedules
WHERE tenant = $1 AND ($2::text IS NULL OR owner = $2) AND ($3 = '' OR kind = $3) AND ($4 = '' OR target = $4)
    AND id > $5
ORDER BY id LIMIT $6

-- name: pause_schedule
UPDATE astromesh.schedules SET paused = $2, instant = $3, due_at = $4 WHERE id = $1

-- name: delete_schedule
DELETE FROM astromesh.schedules WHERE id = $1

-- name: erase_schedules
DELETE FROM astromesh.schedules WHERE tenant = $1 AND owner = $2 AND from_file = 0
