-- What callers say about their runs: values by name, and tags.
ALTER TABLE astromesh.runs ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';

ALTER TABLE astromesh.runs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
