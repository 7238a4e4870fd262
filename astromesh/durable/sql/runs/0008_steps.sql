-- What a step shows: its number in its run, its time, its input. A run that was made from another one names it.
ALTER TABLE astromesh.run_steps ADD COLUMN ordinal BIGINT NOT NULL DEFAULT 0;

ALTER TABLE astromesh.run_steps ADD COLUMN started_at DOUBLE PRECISION NOT NULL DEFAULT 0.0;

ALTER TABLE astromesh.run_steps ADD COLUMN duration_ms DOUBLE PRECISION NOT NULL DEFAULT 0.0;

ALTER TABLE astromesh.run_steps ADD COLUMN about TEXT;

ALTER TABLE astromesh.runs ADD COLUMN forked_from TEXT;
