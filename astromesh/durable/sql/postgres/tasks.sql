-- Queries of tasks of this database alone; the others are in `sql/tasks.sql`.

-- name: hold
UPDATE astromesh.tasks SET status = CASE status WHEN 'queued' THEN 'running' ELSE status END
WHERE task_id = $1 AND worker = $2 AND finished_at = 0 RETURNING task_id

-- name: end
UPDATE astromesh.tasks SET status = $3, result = $4, finished_at = $5, worker = '', lease_until = 0
WHERE task_id = $1 AND worker = $2 AND finished_at = 0 RETURNING task_id

-- name: take
UPDATE astromesh.tasks SET worker = $1, lease_until = $2
WHERE task_id IN (
    SELECT task_id FROM astromesh.tasks
    WHERE finished_at = 0 AND durable = 1
      AND (lease_until < $3 OR worker = ANY($4::text[]))
    ORDER BY created_at, task_id LIMIT $5 FOR UPDATE SKIP LOCKED
)
RETURNING COLUMNS

-- name: beat
UPDATE astromesh.tasks SET lease_until = $2
WHERE worker = $1 AND finished_at = 0 AND ($3::text[] IS NULL OR task_id = ANY($3))

-- name: cancel
UPDATE astromesh.tasks SET cancelling = 1 WHERE task_id = $1 AND finished_at = 0 RETURNING task_id

-- name: cancel_owned
UPDATE astromesh.tasks SET cancelling = 1 WHERE tenant = $1 AND owner = $2 AND finished_at = 0 RETURNING task_id

-- name: delete_records
DELETE FROM astromesh.task_records WHERE task_id = ANY($1::text[])

-- name: delete_artifacts
DELETE FROM astromesh.task_artifacts WHERE task_id = ANY($1::text[])

-- name: delete
DELETE FROM astromesh.tasks WHERE task_id = ANY($1::text[])
