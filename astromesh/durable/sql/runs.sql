-- Queries of runs that are the same in every database, written for PostgreSQL (see `storage.migrations`).
-- COLUMNS and VALUES stand for the columns of a run and its `queued_at`; FIRST_IN_SESSION: no older ordered run of
-- the session is queued or running.

-- name: add
INSERT INTO astromesh.runs (COLUMNS, queued_at) VALUES (VALUES)

-- name: note
INSERT INTO astromesh.runs (COLUMNS, queued_at) VALUES (VALUES) ON CONFLICT (run_id) DO NOTHING

-- name: put_trace
INSERT INTO astromesh.run_traces VALUES ($1, $2) ON CONFLICT (run_id) DO UPDATE SET events = excluded.events

-- name: trace
SELECT COLUMNS, (SELECT events FROM astromesh.run_traces t WHERE t.run_id = r.run_id)
FROM astromesh.runs r WHERE trace_id = $1 ORDER BY id

-- name: get
SELECT COLUMNS FROM astromesh.runs WHERE run_id = $1

-- name: list
SELECT COLUMNS FROM astromesh.runs
WHERE tenant = $1 AND ($2::text IS NULL OR owner = $2) AND ($3 = '' OR agent = $3)
    AND ($4 = '' OR session_id = $4) AND ($5 = '' OR status = $5)
ORDER BY id DESC LIMIT $6

-- name: next_of
SELECT run_id, segment FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'queued' AND agent = $1 AND wake_at <= $2
    AND FIRST_IN_SESSION
ORDER BY priority, id LIMIT 1

-- name: queued
SELECT count(*) FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'queued' AND agent = $1

-- name: running
-- Beside one run.
SELECT count(*) FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'running' AND agent = $1 AND run_id <> $2

-- name: agent
SELECT agent FROM astromesh.runs WHERE run_id = $1

-- name: open_of_session
SELECT COLUMNS FROM astromesh.runs
WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND ordered = TRUE AND status IN ('queued', 'running')
ORDER BY id FOR UPDATE

-- name: put_step
INSERT INTO astromesh.run_steps VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (run_id, path, n) DO UPDATE
SET kind = excluded.kind, request_hash = excluded.request_hash, state = excluded.state, output = excluded.output

-- name: put_nested
-- One that has begun, once; one that has ended.
INSERT INTO astromesh.runs (COLUMNS, queued_at) VALUES (VALUES)
ON CONFLICT (run_id) DO UPDATE SET status = excluded.status, finished_at = excluded.finished_at, result = excluded.result,
    error = excluded.error, attempts = excluded.attempts, input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens, cached_tokens = excluded.cached_tokens, cost_usd = excluded.cost_usd,
    estimated = excluded.estimated
WHERE excluded.finished_at > 0

-- name: nested_open
SELECT COLUMNS FROM astromesh.runs WHERE durable = FALSE AND status = 'running' AND worker = $1 AND parent <> ''

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
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'running' AND worker = $1 AND cancelling = TRUE

-- name: beat
INSERT INTO astromesh.workers VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at

-- name: leave
DELETE FROM astromesh.workers WHERE worker = $1

-- name: forget_workers
DELETE FROM astromesh.workers WHERE seen_at < $1

-- name: hand_over
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', queued_at = $2
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'running' AND worker = $1
RETURNING run_id, segment

-- name: orphans
SELECT COLUMNS FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'running'
    AND worker NOT IN (SELECT worker FROM astromesh.workers WHERE seen_at > $1)
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: requeue
UPDATE astromesh.runs SET status = 'queued', segment = segment + 1, worker = '', waiting_for = NULL,
    wake_at = 0.0, queued_at = $3
WHERE run_id = $1 AND segment = $2 RETURNING run_id, segment

-- name: awake
SELECT COLUMNS FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'waiting' AND wake_at > 0.0
    AND wake_at <= $1
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: waiting
SELECT COLUMNS FROM astromesh.runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = TRUE AND status = 'waiting' AND waiting_for IS NOT NULL
    AND tenant = $1 AND ($2::text IS NULL OR owner = $2)
ORDER BY id LIMIT $3

-- name: expire_keys
DELETE FROM astromesh.idempotency_keys WHERE expires_at <= $1

-- name: owned_open
SELECT COLUMNS FROM astromesh.runs
WHERE tenant = $1 AND owner = $2 AND status IN ('queued', 'running', 'waiting') ORDER BY id

-- name: erase_keys
DELETE FROM astromesh.idempotency_keys WHERE tenant = $1 AND owner = $2

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
WHERE durable = FALSE AND status = 'running' AND parent = ''
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
