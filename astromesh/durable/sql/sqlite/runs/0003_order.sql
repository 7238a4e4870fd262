-- Runs of one session that begin in the order in which they were accepted.
ALTER TABLE runs ADD COLUMN ordered INTEGER NOT NULL DEFAULT 0;

CREATE INDEX runs_in_order ON runs (tenant, agent, session_id, id)
WHERE ordered = 1 AND status IN ('queued', 'running');
