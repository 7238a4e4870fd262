-- name: accept
INSERT INTO tasks (COLUMNS) VALUES (VALUES_OF_IT)

-- name: add_record
INSERT INTO task_records (task_id, n, record) VALUES (?, ?, ?)
ON CONFLICT (task_id, n) DO UPDATE SET record = excluded.record

-- name: add_artifact
INSERT INTO task_artifacts (task_id, n, type, path, node, stage, created_at, fingerprint, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (task_id, n) DO UPDATE SET content = excluded.content

-- name: hold
UPDATE tasks SET status = CASE status WHEN 'queued' THEN 'running' ELSE status END
WHERE task_id = ? AND worker = ? AND finished_at = 0

-- name: end
UPDATE tasks SET status = ?3, result = ?4, finished_at = ?5, worker = '', lease_until = 0
WHERE task_id = ?1 AND worker = ?2 AND finished_at = 0

-- name: get
SELECT COLUMNS FROM tasks WHERE task_id = ?

-- name: list
SELECT COLUMNS FROM tasks
WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) AND (?3 = '' OR workflow = ?3) AND (?4 = '' OR status = ?4)
ORDER BY created_at DESC, task_id DESC LIMIT ?5

-- name: records
SELECT record FROM task_records WHERE task_id = ? AND n > ? ORDER BY n

-- name: artifacts
SELECT a.task_id, a.n, a.type, a.path, a.node, a.stage, a.created_at, a.fingerprint, a.content
FROM task_artifacts a JOIN tasks t ON t.task_id = a.task_id
WHERE t.tenant = ?1 AND (?2 IS NULL OR t.owner = ?2) AND (?3 = '' OR a.task_id = ?3)
  AND (?4 = '' OR a.node = ?4) AND (?5 = '' OR a.type = ?5) AND a.created_at >= ?6
ORDER BY a.created_at, a.task_id, a.n LIMIT ?7

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

-- name: cancelling
SELECT task_id FROM tasks WHERE worker = ? AND finished_at = 0 AND cancelling = 1

-- name: cancel
UPDATE tasks SET cancelling = 1 WHERE task_id = ? AND finished_at = 0

-- name: expired
SELECT task_id FROM tasks WHERE finished_at > 0 AND finished_at < ? LIMIT 500

-- name: owned
SELECT task_id FROM tasks WHERE tenant = ? AND owner = ? AND finished_at > 0

-- name: cancel_owned
UPDATE tasks SET cancelling = 1 WHERE tenant = ? AND owner = ? AND finished_at = 0

-- name: delete_records
DELETE FROM task_records WHERE task_id = ?

-- name: delete_artifacts
DELETE FROM task_artifacts WHERE task_id = ?

-- name: delete
DELETE FROM tasks WHERE task_id = ?
