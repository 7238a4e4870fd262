-- Queries of Tasks for both databases, written for PostgreSQL (astromesh/storage/queries.py). {columns} are the columns
-- of a Task, {values} their parameters.

-- name: accept
INSERT INTO astromesh.tasks ({columns}) VALUES ({values})

-- name: add_record
INSERT INTO astromesh.task_records (task_id, n, record) VALUES ($1, $2, $3)
ON CONFLICT (task_id, n) DO UPDATE SET record = excluded.record

-- name: add_artifact
INSERT INTO astromesh.task_artifacts (task_id, n, type, path, node, stage, created_at, fingerprint, content)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (task_id, n) DO UPDATE SET content = excluded.content

-- name: add_payload
INSERT INTO astromesh.task_payloads (task_id, hash, content) VALUES ($1, $2, $3)
ON CONFLICT (task_id, hash) DO NOTHING

-- name: payloads
SELECT task_id, hash, content FROM astromesh.task_payloads
WHERE task_id = ANY($1::text[]) AND hash = ANY($2::text[])

-- name: add_snapshot
INSERT INTO astromesh.task_snapshots (id, content, used_at) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at

-- name: snapshot
SELECT content FROM astromesh.task_snapshots WHERE id = $1

-- name: get
SELECT {columns} FROM astromesh.tasks WHERE task_id = $1

-- name: list
SELECT {columns} FROM astromesh.tasks
WHERE tenant = $1 AND ($2::text IS NULL OR owner = $2) AND ($3 = '' OR workflow = $3)
  AND ($4 = '' OR status = $4) AND ($6 = '' OR task_id < $6)
ORDER BY task_id DESC LIMIT $5

-- name: records
SELECT record FROM astromesh.task_records WHERE task_id = $1 AND n > $2 ORDER BY n

-- name: artifacts
SELECT a.task_id, a.n, a.type, a.path, a.node, a.stage, a.created_at, a.fingerprint, a.content
FROM astromesh.task_artifacts a JOIN astromesh.tasks t ON t.task_id = a.task_id
WHERE t.tenant = $1 AND ($2::text IS NULL OR t.owner = $2) AND ($3 = '' OR a.task_id = $3)
  AND ($4 = '' OR a.node = $4) AND ($5 = '' OR a.type = $5) AND a.created_at >= $6
  AND (a.created_at > $8 OR (a.created_at = $8 AND a.n > $9))
ORDER BY a.created_at, a.n, a.task_id LIMIT $7

-- name: controls
SELECT task_id, control, cancelling, inspection FROM astromesh.tasks
WHERE worker = $1 AND finished_at = 0 AND (cancelling = 1 OR control > 0)

-- name: act
UPDATE astromesh.tasks SET control = control + 1 WHERE task_id = $1 AND finished_at = 0
RETURNING tenant, inspection

-- name: inspect
UPDATE astromesh.tasks SET inspection = $2 WHERE task_id = $1

-- name: add_wait
INSERT INTO astromesh.task_waits (task_id, path, stage, ticket, tenant, kind, asked_at, expires_at, question)
SELECT $1, $2, $3, $4, t.tenant, $5, $6::float8, $7::float8, $8 FROM astromesh.tasks t WHERE t.task_id = $1
ON CONFLICT (task_id, path, stage, ticket) DO NOTHING

-- name: waits
SELECT task_id, path, stage, ticket, kind, asked_at, expires_at, question, answer FROM astromesh.task_waits
WHERE task_id = $1 ORDER BY asked_at, path, stage, ticket

-- name: open_waits
SELECT w.task_id, w.path, w.stage, w.ticket, w.kind, w.asked_at, w.expires_at, w.question, w.answer,
  t.workflow, t.owner
FROM astromesh.task_waits w JOIN astromesh.tasks t ON t.task_id = w.task_id
WHERE w.tenant = $1 AND w.answer IS NULL AND w.kind <> 'pause' AND t.finished_at = 0
ORDER BY w.asked_at, w.task_id, w.ticket LIMIT $2

-- name: answer
UPDATE astromesh.task_waits SET answer = $5
WHERE task_id = $1 AND path = $2 AND stage = $3 AND ticket = $4 AND answer IS NULL

-- name: redact_wait
UPDATE astromesh.task_waits SET question = $5, answer = $6
WHERE task_id = $1 AND path = $2 AND stage = $3 AND ticket = $4

-- name: answer_pauses
UPDATE astromesh.task_waits SET answer = '{}' WHERE task_id = $1 AND kind = 'pause' AND answer IS NULL

-- name: expired
SELECT task_id FROM astromesh.tasks WHERE finished_at > 0 AND finished_at < $1 LIMIT 500

-- name: owned
SELECT task_id FROM astromesh.tasks WHERE tenant = $1 AND owner = $2 AND finished_at > 0

-- name: hold
UPDATE astromesh.tasks SET status = CASE status WHEN 'queued' THEN 'running' ELSE status END
WHERE task_id = $1 AND worker = $2 AND finished_at = 0
RETURNING control, inspection

-- name: end
UPDATE astromesh.tasks SET status = $3, result = $4, finished_at = $5, worker = '', lease_until = 0
WHERE task_id = $1 AND worker = $2 AND finished_at = 0

-- name: anything_to_take
SELECT EXISTS (
    SELECT 1 FROM astromesh.tasks
    WHERE finished_at = 0 AND durable = 1
      AND (lease_until < $1 OR worker = ANY($2::text[])))

-- name: take
UPDATE astromesh.tasks SET worker = $1, lease_until = $2
WHERE task_id IN (
    SELECT task_id FROM astromesh.tasks
    WHERE finished_at = 0 AND durable = 1
      AND (lease_until < $3 OR worker = ANY($4::text[]))
    ORDER BY created_at, task_id LIMIT $5 FOR UPDATE SKIP LOCKED
)
RETURNING {columns}

-- name: heartbeat
UPDATE astromesh.tasks SET lease_until = $2
WHERE worker = $1 AND finished_at = 0 AND ($3::text[] IS NULL OR task_id = ANY($3))

-- name: cancel
UPDATE astromesh.tasks SET cancelling = 1 WHERE task_id = $1 AND finished_at = 0 RETURNING task_id

-- name: cancel_owned
UPDATE astromesh.tasks SET cancelling = 1 WHERE tenant = $1 AND owner = $2 AND finished_at = 0

-- name: delete_records
DELETE FROM astromesh.task_records WHERE task_id = ANY($1::text[])

-- name: delete_snapshots
DELETE FROM astromesh.task_snapshots AS s
WHERE s.used_at < $1 AND NOT EXISTS (SELECT 1 FROM astromesh.tasks t WHERE t.snapshot = s.id)

-- name: delete_waits
DELETE FROM astromesh.task_waits WHERE task_id = ANY($1::text[])

-- name: delete_payloads
DELETE FROM astromesh.task_payloads WHERE task_id = ANY($1::text[])

-- name: delete_artifacts
DELETE FROM astromesh.task_artifacts WHERE task_id = ANY($1::text[])

-- name: delete
DELETE FROM astromesh.tasks WHERE task_id = ANY($1::text[])

-- name: add_callback
INSERT INTO astromesh.task_callbacks (task_id, url, events, headers) VALUES ($1, $2, $3, $4)

-- name: queues
-- A Task is queued until its worker writes, at the latest when its first stage has ended.
SELECT workflow,
    count(CASE WHEN status = 'queued' AND NOT waits THEN 1 END),
    count(CASE WHEN status <> 'queued' AND NOT waits THEN 1 END),
    count(CASE WHEN waits THEN 1 END),
    min(CASE WHEN status = 'queued' AND NOT waits THEN created_at END)
FROM (
    SELECT workflow, status, created_at, EXISTS (
        SELECT 1 FROM astromesh.task_waits w WHERE w.task_id = t.task_id AND w.answer IS NULL) AS waits
    FROM astromesh.tasks t WHERE finished_at = 0 AND durable = 1) AS found
GROUP BY workflow ORDER BY workflow
