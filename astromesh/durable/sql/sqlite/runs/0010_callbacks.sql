-- Whom to tell about a run, and what is to be told. `events` is a JSON array of statuses; `headers` is encrypted.
CREATE TABLE callbacks (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    url TEXT NOT NULL,
    events TEXT NOT NULL,
    headers BLOB NOT NULL,
    UNIQUE (run_id, url)
);

CREATE TABLE callback_deliveries (
    id INTEGER PRIMARY KEY,
    callback INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    event TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    began_at REAL NOT NULL,
    due_at REAL NOT NULL,
    http_status INTEGER NOT NULL,
    error TEXT NOT NULL
);

CREATE INDEX callbacks_due ON callback_deliveries (due_at) WHERE state = 'pending';

CREATE INDEX callbacks_of_run ON callback_deliveries (run_id);

-- Whatever changes the status of a run, the delivery is stored in the same transaction.
CREATE TRIGGER runs_call_back AFTER UPDATE OF status ON runs
WHEN NEW.status IN ('waiting', 'completed', 'failed', 'cancelled') AND NEW.status <> OLD.status
BEGIN
    INSERT INTO callback_deliveries (callback, run_id, event, state, attempts, began_at, due_at, http_status, error)
    SELECT c.id, c.run_id, NEW.status, 'pending', 0, 0.0, 0.0, 0, '' FROM callbacks c
    WHERE c.run_id = NEW.run_id AND EXISTS (SELECT 1 FROM json_each(c.events) e WHERE e.value = NEW.status);
END;

CREATE TRIGGER runs_take_their_callbacks AFTER DELETE ON runs
BEGIN
    DELETE FROM callbacks WHERE run_id = OLD.run_id;
    DELETE FROM callback_deliveries WHERE run_id = OLD.run_id;
END;
