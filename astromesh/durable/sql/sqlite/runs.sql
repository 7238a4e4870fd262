-- Queries of runs for SQLite alone.

-- name: claim
-- A worker that has a run and claims it again gets it again: the answer was lost.
UPDATE runs SET status = 'running', worker = ?3, wake_at = 0.0
WHERE run_id = ?1 AND segment = ?2 AND (status = 'queued' AND wake_at <= ?4 OR status = 'running' AND worker = ?3)
    AND durable = 1
    AND {first_in_session} AND {alone}
RETURNING {columns}

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

-- fragment: said
-- Whether all tags of the array 6 match, and all metadata of the array 7: key, value as JSON text, value as it is.
(?6 = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(?6) f WHERE f.value NOT IN (SELECT t.value FROM json_each(tags) t)))
    AND (?7 = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(?7) f
        WHERE coalesce(
            metadata -> ('$.' || json_quote(f.value ->> 0)) NOT IN (f.value ->> 1, f.value ->> 2), TRUE)))
