-- Whom to tell about a Task, and what is to be told, as of runs. The ids of deliveries are above those of runs.
CREATE TABLE task_callbacks (
    id INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL UNIQUE,
    url TEXT NOT NULL,
    events TEXT NOT NULL,
    headers BLOB NOT NULL
);

CREATE TABLE task_deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    callback INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    event TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    began_at REAL NOT NULL,
    due_at REAL NOT NULL,
    http_status INTEGER NOT NULL,
    error TEXT NOT NULL
);

INSERT INTO sqlite_sequence (name, seq) VALUES ('task_deliveries', 4503599627370495);

CREATE INDEX task_deliveries_due ON task_deliveries (due_at) WHERE state = 'pending';

CREATE INDEX task_deliveries_of_task ON task_deliveries (task_id);

-- Whatever ends a Task, the delivery is stored in the same transaction.
CREATE TRIGGER tasks_call_back AFTER UPDATE OF status ON tasks
WHEN NEW.finished_at > 0 AND OLD.finished_at = 0
BEGIN
    INSERT INTO task_deliveries (callback, task_id, event, state, attempts, began_at, due_at, http_status, error)
    SELECT c.id, c.task_id, t.event, 'pending', 0, 0.0, 0.0, 0, '' FROM task_callbacks c, (
        SELECT CASE WHEN NEW.status <> 'failure' THEN 'completed' WHEN NEW.cancelling = 1 THEN 'cancelled'
            ELSE 'failed' END AS event) t
    WHERE c.task_id = NEW.task_id AND EXISTS (SELECT 1 FROM json_each(c.events) e WHERE e.value = t.event);
END;

CREATE TRIGGER waits_call_back AFTER INSERT ON task_waits
WHEN NEW.kind <> 'pause' AND NEW.answer IS NULL
BEGIN
    INSERT INTO task_deliveries (callback, task_id, event, state, attempts, began_at, due_at, http_status, error)
    SELECT c.id, c.task_id, 'waiting', 'pending', 0, 0.0, 0.0, 0, '' FROM task_callbacks c
    WHERE c.task_id = NEW.task_id AND EXISTS (SELECT 1 FROM json_each(c.events) e WHERE e.value = 'waiting');
END;

CREATE TRIGGER tasks_take_their_callbacks AFTER DELETE ON tasks
BEGIN
    DELETE FROM task_callbacks WHERE task_id = OLD.task_id;
    DELETE FROM task_deliveries WHERE task_id = OLD.task_id;
END;
