-- Queries of runs of this database alone; the others are in `sql/runs.sql`.

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
    AND FIRST_IN_SESSION
RETURNING COLUMNS

-- name: following
SELECT run_id, segment FROM runs
WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND ordered = 1
    AND status IN ('queued', 'running') AND status = 'queued'
ORDER BY id LIMIT 1

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

-- name: put_event
INSERT INTO run_events VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id, seq) DO NOTHING

-- name: stale
UPDATE runs SET queued_at = ?2
WHERE id IN (
    SELECT id FROM runs
    WHERE status IN ('queued', 'running', 'waiting') AND durable = 1 AND status = 'queued' AND queued_at <= ?1
        AND wake_at <= ?2 AND agent NOT IN (SELECT value FROM json_each(?4))
        AND FIRST_IN_SESSION
    ORDER BY priority, id LIMIT ?3)
RETURNING run_id, segment

-- name: expire
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs WHERE finished_at > 0.0 AND finished_at < ?1 LIMIT ?2)

-- name: expire_many
-- The answer to a key is kept as long as the key.
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs r WHERE finished_at > 0.0
        AND NOT EXISTS (SELECT 1 FROM idempotency_keys k WHERE k.run_id = r.run_id)
    ORDER BY finished_at DESC LIMIT ?2 OFFSET ?1)

-- name: erase_owner
DELETE FROM runs WHERE tenant = ? AND owner = ? AND status IN ('completed', 'failed', 'cancelled')
