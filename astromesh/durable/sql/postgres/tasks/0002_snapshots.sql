-- Manifests as they were when Tasks were accepted, once for all of these Tasks.
CREATE TABLE astromesh.task_snapshots (
    id TEXT PRIMARY KEY,
    content TEXT NOT NULL,
    used_at DOUBLE PRECISION NOT NULL
);

ALTER TABLE astromesh.tasks ADD COLUMN snapshot TEXT NOT NULL DEFAULT '';
