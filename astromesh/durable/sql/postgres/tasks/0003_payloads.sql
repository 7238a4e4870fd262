-- Large values of Tasks, once for each Task and compressed; records, artifacts and results name them by their hash.
CREATE TABLE astromesh.task_payloads (
    task_id TEXT NOT NULL,
    hash TEXT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (task_id, hash)
);
