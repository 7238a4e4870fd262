-- Stages of Tasks that wait for a person or for the inspector. An answered row says what was decided.
CREATE TABLE astromesh.task_waits (
    task_id TEXT NOT NULL,
    path TEXT NOT NULL,
    stage TEXT NOT NULL,
    ticket TEXT NOT NULL,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    asked_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    question TEXT NOT NULL,
    answer TEXT,
    PRIMARY KEY (task_id, path, stage, ticket)
);

CREATE INDEX waits_for_people ON astromesh.task_waits (tenant, asked_at) WHERE answer IS NULL AND kind <> 'pause';

-- Where the inspector pauses a Task, and how often somebody has acted on it: its worker looks for a new number.
ALTER TABLE astromesh.tasks ADD COLUMN inspection TEXT;

ALTER TABLE astromesh.tasks ADD COLUMN control BIGINT NOT NULL DEFAULT 0;
