-- Runs that live in one process and are named by their caller: who has them, and that nobody does any more.
CREATE INDEX runs_plain_open ON runs (worker) WHERE durable = 0 AND status = 'running';

CREATE INDEX keys_by_run ON idempotency_keys (run_id);

-- Runs of other processes that somebody wants to end. `answer`: NULL nobody has seen it, '' it is being ended.
CREATE TABLE run_ends (
    run_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    owner TEXT,
    asked_at REAL NOT NULL,
    answer TEXT
) WITHOUT ROWID;
