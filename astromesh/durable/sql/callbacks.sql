-- Queries of the deliveries of callbacks, for runs and Tasks and both databases. The fragments are those of a store
-- (callbacks.py): {callbacks}, {deliveries} and {subjects} are its tables, {id} the column that names a run or Task,
-- {target} the one that names its agent or workflow. {is_open}: it has not ended. {words}: publisher and name.

-- name: take_callbacks
-- A delivery that is taken is due again if the process that has it dies.
UPDATE astromesh.{deliveries}
SET attempts = attempts + 1, due_at = $2, began_at = CASE WHEN began_at > 0.0 THEN began_at ELSE $1 END
WHERE id IN (
    SELECT id FROM astromesh.{deliveries} WHERE state = 'pending' AND due_at <= $1
    ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING id, callback, {id}, event, attempts, began_at

-- name: callback
SELECT url, events, headers, {words} FROM astromesh.{callbacks} WHERE id = $1

-- name: end_callback_attempt
UPDATE astromesh.{deliveries} SET state = $2, due_at = $3, http_status = $4, error = $5
WHERE id = $1 AND state = 'pending'

-- name: callbacks_expected
SELECT EXISTS (SELECT 1 FROM astromesh.{deliveries} WHERE state = 'pending')
    OR EXISTS (
        SELECT 1 FROM astromesh.{callbacks} c JOIN astromesh.{subjects} s ON s.{id} = c.{id}
        WHERE {is_open})

-- name: callbacks
SELECT d.id, d.{id}, s.{target}, d.event, c.url, d.state, d.attempts, d.began_at, d.due_at, d.http_status, d.error
FROM astromesh.{deliveries} d
    JOIN astromesh.{callbacks} c ON c.id = d.callback JOIN astromesh.{subjects} s ON s.{id} = d.{id}
WHERE s.tenant = $1 AND ($2::text IS NULL OR s.owner = $2) AND ($3 = '' OR d.state = $3)
    AND ($4 = '' OR d.{id} = $4) AND ($5 = 0 OR d.id < $5)
ORDER BY d.id DESC LIMIT $6

-- name: retry_callback
UPDATE astromesh.{deliveries} SET state = 'pending', due_at = 0.0, began_at = 0.0
WHERE id = $1 AND state = 'dead' AND {id} IN (
    SELECT {id} FROM astromesh.{subjects} WHERE tenant = $2 AND ($3::text IS NULL OR owner = $3))
