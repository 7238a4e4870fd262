-- Without lists: SQLite makes a table of three values or more each time a row is written. An `OR` would let it prefer
-- this index to those of queued runs.
DROP INDEX runs_open;

CREATE INDEX runs_open ON runs (status, worker)
WHERE durable = 1 AND NOT (status <> 'queued' AND status <> 'running' AND status <> 'waiting');

DROP TRIGGER runs_call_back;

CREATE TRIGGER runs_call_back AFTER UPDATE OF status ON runs
WHEN NEW.status <> OLD.status
    AND (NEW.status = 'waiting' OR NEW.status = 'completed' OR NEW.status = 'failed' OR NEW.status = 'cancelled')
BEGIN
    INSERT INTO callback_deliveries (callback, run_id, event, state, attempts, began_at, due_at, http_status, error)
    SELECT c.id, c.run_id, NEW.status, 'pending', 0, 0.0, 0.0, 0, '' FROM callbacks c
    WHERE c.run_id = NEW.run_id AND EXISTS (SELECT 1 FROM json_each(c.events) e WHERE e.value = NEW.status);
END;
