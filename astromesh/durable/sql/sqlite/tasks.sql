-- Queries of tasks of this database alone; the others are in `sql/tasks.sql`.

-- name: hold
UPDATE tasks SET status = CASE status WHEN 'queued' THEN 'running' ELSE status END
WHERE task_id = ? AND worker = ? AND finished_at = 0

-- name: end
UPDATE tasks SET status = ?3, result = ?4, finished_at = ?5, worker = '', lease_until = 0
WHERE task_id = ?1 AND worker = ?2 AND finished_at = 0

-- name: take
UPDATE tasks SET worker = ?1, lease_until = ?2
WHERE task_id IN (
    SELECT task_id FROM tasks
    WHERE finished_at = 0 AND durable = 1
      AND (lease_until < ?3 OR worker IN (SELECT value FROM json_each(?4)))
    ORDER BY created_at, task_id LIMIT ?5
)
RETURNING COLUMNS

-- name: beat
UPDATE tasks SET lease_until = ?2
WHERE worker = ?1 AND finished_at = 0 AND (?3 IS NULL OR task_id IN (SELECT value FROM json_each(?3)))

-- name: cancel
UPDATE tasks SET cancelling = 1 WHERE task_id = ? AND finished_at = 0

-- name: cancel_owned
UPDATE tasks SET cancelling = 1 WHERE tenant = ? AND owner = ? AND finished_at = 0

-- name: delete_records
DELETE FROM task_records WHERE task_id = ?

-- name: delete_artifacts
DELETE FROM task_artifacts WHERE task_id = ?

-- name: delete
DELETE FROM tasks WHERE task_id = ?
