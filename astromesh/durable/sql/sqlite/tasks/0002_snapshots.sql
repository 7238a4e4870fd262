-- Manifests as they were when Tasks were accepted, once for all of these Tasks.
CREATE TABLE task_snapshots (
    id TEXT PRIMARY KEY,
    content TEXT NOT NULL,
    used_at REAL NOT NULL
);

ALTER TABLE tasks ADD COLUMN snapshot TEXT NOT NULL DEFAULT '';
