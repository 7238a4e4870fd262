-- COLUMNS stands for the columns of a run in the order of `rows.COLUMNS`.

-- name: add
INSERT INTO runs (COLUMNS, queued_at) VALUES (VALUES, ?)

-- name: note
INSERT INTO runs (COLUMNS, queued_at) VALUES (VALUES, ?) ON CONFLICT (run_id) DO NOTHING

-- name: put_trace
INSERT INTO run_traces VALUES (?, ?) ON CONFLICT (run_id) DO UPDATE SET events = excluded.events

-- name: trace
SELECT COLUMNS, (SELECT events FROM run_traces t WHERE t.run_id = r.run_id)
FROM runs r WHERE trace_id = ? ORDER BY id

-- name: get
SELECT COLUMNS FROM runs WHERE run_id = ?

-- name: list
SELECT COLUMNS FROM runs
WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) AND (?3 = '' OR agent = ?3)
    AND (?4 = '' OR session_id = ?4) AND (?5 = '' OR status = ?5)
ORDER BY id DESC LIMIT ?6

-- name: used
-- What a nested run used is part of what the one above it used.
SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cached_tokens), 0),
    coalesce(sum(cost_usd), 0.0), coalesce(max(estimated), 0)
FROM runs r
WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) AND (?3 = '' OR agent = ?3)
    AND (?4 = '' OR session_id = ?4) AND (?5 = '' OR status = ?5)
    AND (parent = '' OR NOT EXISTS (
        SELECT 1 FROM runs a WHERE a.run_id = substr(r.parent, 1, instr(r.parent, '.') - 1)
            AND a.tenant = ?1 AND (?2 IS NULL OR a.owner = ?2) AND (?3 = '' OR a.agent = ?3)
            AND (?4 = '' OR a.session_id = ?4) AND (?5 = '' OR a.status = ?5)))

-- name: claim
-- One that asks again, because it gave up waiting for the answer, has it.
UPDATE runs SET status = 'running', worker = ?3, wake_at = 0.0
WHERE run_id = ?1 AND segment = ?2 AND (status = 'queued' AND wake_at <= ?4 OR status = 'running' AND worker = ?3)
    AND durable = 1
    AND NOT (ordered AND EXISTS (
        SELECT 1 FROM runs o WHERE o.tenant = runs.tenant AND o.agent = runs.agent
            AND o.session_id = runs.session_id AND o.id < runs.id
            AND o.ordered = 1 AND o.status IN ('queued', 'running')))
RETURNING COLUMNS

-- name: following
SELECT run_id, segment FROM runs
WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND ordered = 1
    AND status IN ('queued', 'running') AND status = 'queued'
ORDER BY id LIMIT 1

-- name: next_of
SELECT run_id, segment FROM runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'queued' AND agent = ?1
    AND wake_at <= ?2
    AND NOT (ordered AND EXISTS (
        SELECT 1 FROM runs o WHERE o.tenant = runs.tenant AND o.agent = runs.agent
            AND o.session_id = runs.session_id AND o.id < runs.id
            AND o.ordered = 1 AND o.status IN ('queued', 'running')))
ORDER BY priority, id LIMIT 1

-- name: queued
SELECT count(*) FROM runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'queued' AND agent = ?1

-- name: running
-- Beside one run.
SELECT count(*) FROM runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'running' AND agent = ?1 AND run_id <> ?2

-- name: agent
SELECT agent FROM runs WHERE run_id = ?1

-- name: open_of_session
SELECT COLUMNS FROM runs
WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND ordered = 1 AND status IN ('queued', 'running') ORDER BY id

-- name: join_in
UPDATE runs SET request = ?2, priority = min(priority, ?3) WHERE run_id = ?1

-- name: change
UPDATE runs SET status = coalesce(?4, status), request = coalesce(?5, request), result = coalesce(?6, result),
    error = coalesce(?7, error), attempts = coalesce(?8, attempts), waiting_for = coalesce(?9, waiting_for),
    wake_at = coalesce(?10, wake_at), deadline_at = coalesce(?11, deadline_at),
    finished_at = coalesce(?12, finished_at), input_tokens = coalesce(?13, input_tokens),
    output_tokens = coalesce(?14, output_tokens), cached_tokens = coalesce(?15, cached_tokens),
    cost_usd = coalesce(?16, cost_usd), estimated = coalesce(?17, estimated)
WHERE run_id = ?1 AND segment = ?2 AND worker = ?3 AND status = 'running'

-- name: holds
SELECT 1 FROM runs WHERE run_id = ?1 AND segment = ?2 AND worker = ?3 AND status = 'running'

-- name: put_step
INSERT INTO run_steps VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, path, n) DO UPDATE
SET kind = excluded.kind, request_hash = excluded.request_hash, state = excluded.state, output = excluded.output

-- name: put_nested
-- One that has begun, once; one that has ended.
INSERT INTO runs (COLUMNS, queued_at) VALUES (VALUES, ?)
ON CONFLICT (run_id) DO UPDATE SET status = excluded.status, finished_at = excluded.finished_at, result = excluded.result,
    error = excluded.error, attempts = excluded.attempts, input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens, cached_tokens = excluded.cached_tokens, cost_usd = excluded.cost_usd,
    estimated = excluded.estimated
WHERE excluded.finished_at > 0

-- name: nested_open
SELECT COLUMNS FROM runs WHERE durable = 0 AND status = 'running' AND worker = ?1 AND parent <> ''

-- name: steps
SELECT path, n, kind, request_hash, state, output FROM run_steps WHERE run_id = ? ORDER BY path, n

-- name: put_event
INSERT INTO run_events VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id, seq) DO NOTHING

-- name: put_last_event
INSERT INTO run_events
SELECT ?1, coalesce(max(seq), 0) + 1, ?2, ?3, ?4 FROM run_events WHERE run_id = ?1

-- name: events
SELECT seq, ts, type, data FROM run_events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: advance
UPDATE runs SET status = 'queued', segment = segment + 1, worker = '', waiting_for = NULL, wake_at = 0.0,
    queued_at = ?3
WHERE run_id = ?1 AND segment = ?2 AND status = 'waiting' RETURNING COLUMNS

-- name: hand_back
UPDATE runs SET status = 'queued', segment = segment + 1, worker = '', queued_at = ?4
WHERE run_id = ?1 AND segment = ?2 AND worker = ?3 AND status = 'running' RETURNING COLUMNS

-- name: end_idle
UPDATE runs SET status = ?2, finished_at = ?3, error = ?4, waiting_for = NULL, wake_at = 0.0
WHERE run_id = ?1 AND status IN ('queued', 'running', 'waiting')

-- name: ask_end
UPDATE runs SET cancelling = 1 WHERE run_id = ? AND status = 'running'

-- name: cancelling
SELECT run_id FROM runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'running' AND worker = ? AND cancelling = 1

-- name: beat
INSERT INTO workers VALUES (?, ?) ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at

-- name: leave
DELETE FROM workers WHERE worker = ?

-- name: forget_workers
DELETE FROM workers WHERE seen_at < ?

-- name: hand_over
UPDATE runs SET status = 'queued', segment = segment + 1, worker = '', queued_at = ?2
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'running' AND worker = ?1
RETURNING run_id, segment

-- name: orphans
SELECT COLUMNS FROM runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'running'
    AND worker NOT IN (SELECT worker FROM workers WHERE seen_at > ?1)
LIMIT ?2

-- name: requeue
UPDATE runs SET status = 'queued', segment = segment + 1, worker = '', waiting_for = NULL, wake_at = 0.0,
    queued_at = ?3
WHERE run_id = ?1 AND segment = ?2 RETURNING run_id, segment

-- name: awake
SELECT COLUMNS FROM runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'waiting' AND wake_at > 0.0
    AND wake_at <= ?1
LIMIT ?2

-- name: stale
UPDATE runs SET queued_at = ?2
WHERE id IN (
    SELECT id FROM runs
    WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'queued' AND queued_at <= ?1
        AND wake_at <= ?2 AND agent NOT IN (SELECT value FROM json_each(?4))
        AND NOT (ordered AND EXISTS (
            SELECT 1 FROM runs o WHERE o.tenant = runs.tenant AND o.agent = runs.agent
                AND o.session_id = runs.session_id AND o.id < runs.id
                AND o.ordered = 1 AND o.status IN ('queued', 'running')))
    ORDER BY priority, id LIMIT ?3)
RETURNING run_id, segment

-- name: waiting
SELECT COLUMNS FROM runs
WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'waiting' AND waiting_for IS NOT NULL
    AND tenant = ?1 AND (?2 IS NULL OR owner = ?2)
ORDER BY id LIMIT ?3

-- name: expire
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs WHERE finished_at > 0.0 AND finished_at < ?1 LIMIT ?2)

-- name: expire_many
-- The answer to a key is kept as long as the key.
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs r WHERE finished_at > 0.0
        AND NOT EXISTS (SELECT 1 FROM idempotency_keys k WHERE k.run_id = r.run_id)
    ORDER BY finished_at DESC LIMIT ?2 OFFSET ?1)

-- name: expire_keys
DELETE FROM idempotency_keys WHERE expires_at <= ?

-- name: owned_open
SELECT COLUMNS FROM runs WHERE tenant = ? AND owner = ? AND status IN ('queued', 'running', 'waiting')

-- name: erase_owner
DELETE FROM runs WHERE tenant = ? AND owner = ? AND status IN ('completed', 'failed', 'cancelled')

-- name: erase_keys
DELETE FROM idempotency_keys WHERE tenant = ? AND owner = ?

-- name: key
SELECT body_hash, run_id FROM idempotency_keys
WHERE tenant = ? AND owner = ? AND route = ? AND key = ? AND expires_at > ?

-- name: put_key
INSERT INTO idempotency_keys VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner, route, key) DO UPDATE
SET body_hash = excluded.body_hash, run_id = excluded.run_id, expires_at = excluded.expires_at

-- name: free_key
DELETE FROM idempotency_keys WHERE run_id = ?1

-- name: lost
-- Runs of one process that is dead.
SELECT COLUMNS FROM runs
WHERE durable = 0 AND status = 'running' AND parent = ''
    AND worker NOT IN (SELECT worker FROM workers WHERE seen_at > ?1)
LIMIT ?2

-- name: ask_process
INSERT INTO run_ends VALUES (?1, ?2, ?3, ?4, NULL)
ON CONFLICT (run_id) DO UPDATE
SET tenant = excluded.tenant, owner = excluded.owner, asked_at = excluded.asked_at, answer = NULL

-- name: asked_processes
SELECT run_id, tenant, owner FROM run_ends WHERE answer IS NULL AND asked_at > ?1

-- name: answer_process
UPDATE run_ends SET answer = ?2 WHERE run_id = ?1

-- name: answered
SELECT answer FROM run_ends WHERE run_id = ?1

-- name: forget_asked
DELETE FROM run_ends WHERE run_id = ?1 OR asked_at < ?2
