-- Runs that live in one process and are named by their caller: who has them, and that nobody does any more.
CREATE INDEX runs_plain_open ON astromesh.runs (worker) WHERE NOT durable AND status = 'running';

CREATE INDEX keys_by_run ON astromesh.idempotency_keys (run_id);

-- Runs of other processes that somebody wants to end. `answer`: NULL nobody has seen it, '' it is being ended.
CREATE TABLE astromesh.run_ends (
    run_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    owner TEXT,
    asked_at DOUBLE PRECISION NOT NULL,
    answer TEXT
);
