-- Queries of runs for SQLite alone.

-- fragment: open
-- The words of the index `runs_open`; its migration says why they are no list.
durable = 1 AND NOT (status <> 'queued' AND status <> 'running' AND status <> 'waiting')

-- fragment: alone
-- Runs whose process died twice without a step between are executed one at a time, the oldest first.
NOT (deaths >= 2 AND EXISTS (
    SELECT 1 FROM runs o
    WHERE o.durable = 1 AND NOT (o.status <> 'queued' AND o.status <> 'running' AND o.status <> 'waiting')
        AND o.status IN ('queued', 'running') AND o.deaths >= 2 AND o.id < runs.id))

-- name: claim
-- A worker that has a run and claims it again gets it again: the answer was lost.
UPDATE runs SET status = 'running', worker = ?3, wake_at = 0.0
WHERE run_id = ?1 AND segment = ?2 AND (status = 'queued' AND wake_at <= ?4 OR status = 'running' AND worker = ?3)
    AND durable = 1
    AND {first_in_session} AND {alone}
RETURNING {columns}

-- name: next_of_agent
-- The next run of each tenant.
WITH RECURSIVE {tenants_of_agent}
SELECT r.run_id, r.segment, r.tenant, r.priority, r.id FROM t JOIN runs r ON r.id = (
    SELECT id FROM runs
    WHERE {open} AND status = 'queued' AND agent = ?1 AND runs.tenant = t.tenant AND wake_at <= ?2
        AND {first_in_session} AND {alone}
    ORDER BY priority, id LIMIT 1)

-- name: redispatch
-- Each tenant with queued runs has an equal share.
WITH RECURSIVE {tenants}
UPDATE runs SET queued_at = ?2
WHERE id IN (
    SELECT r.id FROM t JOIN runs r ON r.id IN (
        SELECT id FROM runs
        WHERE {open} AND status = 'queued' AND runs.tenant = t.tenant AND queued_at <= ?1
            AND wake_at <= ?2 AND agent NOT IN (SELECT value FROM json_each(?4))
            AND {first_in_session} AND {alone}
        ORDER BY priority, id LIMIT max(1, ?3 / max(1, (SELECT count(tenant) FROM t))))
    LIMIT ?3)
RETURNING run_id, segment

-- name: next_in_session
SELECT run_id, segment FROM runs
WHERE tenant = ?1 AND agent = ?2 AND session_id = ?3 AND owner = ?4 AND ordered = 1
    AND status IN ('queued', 'running') AND status = 'queued'
ORDER BY id LIMIT 1

-- name: change
UPDATE runs SET {assignments}
WHERE run_id = ?1 AND segment = ?2 AND worker = ?3 AND status = 'running'

-- name: check_claim
SELECT 1 FROM runs WHERE run_id = ?1 AND segment = ?2 AND worker = ?3 AND status = 'running'

-- name: add_event
INSERT INTO run_events VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id, seq) DO NOTHING

-- fragment: labels
-- Whether all tags of the array 6 match, and all metadata of the array 7: key, value as JSON text, value as it is.
(?6 = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(?6) f WHERE f.value NOT IN (SELECT t.value FROM json_each(tags) t)))
    AND (?7 = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(?7) f
        WHERE coalesce(
            metadata -> ('$.' || json_quote(f.value ->> 0)) NOT IN (f.value ->> 1, f.value ->> 2), TRUE)))
