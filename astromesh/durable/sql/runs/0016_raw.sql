-- Ended runs whose record the rules of their agents have not passed yet. Those of former versions may be among the
-- cancelled and failed ones, and those that asked people.
ALTER TABLE astromesh.runs ADD COLUMN raw BOOLEAN NOT NULL DEFAULT FALSE;

CREATE INDEX runs_raw ON astromesh.runs (id) WHERE raw = TRUE;

UPDATE astromesh.runs SET raw = TRUE
WHERE durable = TRUE AND finished_at > 0.0 AND (
    status IN ('cancelled', 'failed')
    OR EXISTS (SELECT 1 FROM astromesh.run_steps s WHERE s.run_id = runs.run_id AND s.kind = 'wait'));
