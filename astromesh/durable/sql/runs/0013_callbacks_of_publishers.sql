-- In whose words a callback is told, and its name among those of its run.
ALTER TABLE astromesh.callbacks ADD COLUMN publisher TEXT NOT NULL DEFAULT '';

ALTER TABLE astromesh.callbacks ADD COLUMN name TEXT NOT NULL DEFAULT '';
