-- Runs of one session that begin in the order in which they were accepted.
ALTER TABLE astromesh.runs ADD COLUMN ordered BOOLEAN NOT NULL DEFAULT FALSE;

CREATE INDEX runs_in_order ON astromesh.runs (tenant, agent, session_id, id)
WHERE ordered AND status IN ('queued', 'running');
