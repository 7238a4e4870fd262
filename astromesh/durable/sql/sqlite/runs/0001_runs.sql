CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    parent TEXT NOT NULL,
    status TEXT NOT NULL,
    durable INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    worker TEXT NOT NULL,
    priority INTEGER NOT NULL,
    cancelling INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    queued_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    deadline_at REAL NOT NULL,
    wake_at REAL NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    estimated INTEGER NOT NULL,
    request TEXT NOT NULL,
    manifest TEXT,
    caller TEXT NOT NULL,
    result TEXT,
    error TEXT,
    attempts TEXT NOT NULL,
    waiting_for TEXT
);

CREATE INDEX runs_by_owner ON runs (tenant, owner, id);

CREATE INDEX runs_by_session ON runs (tenant, agent, session_id, id);

-- what somebody must look at now and then: only runs that go on
CREATE INDEX runs_open ON runs (status, worker) WHERE status IN ('queued', 'running', 'waiting') AND durable = 1;

CREATE INDEX runs_ended ON runs (finished_at) WHERE finished_at > 0;

CREATE TABLE run_steps (
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    n INTEGER NOT NULL,
    kind TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    output TEXT,
    PRIMARY KEY (run_id, path, n)
) WITHOUT ROWID;

CREATE TABLE run_events (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    ts REAL NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;

-- What a run did, in one row: the events that its trace is made of.
CREATE TABLE run_traces (
    run_id TEXT PRIMARY KEY,
    events TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX runs_by_trace ON runs (trace_id);

CREATE TABLE idempotency_keys (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    run_id TEXT NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (tenant, owner, route, key)
) WITHOUT ROWID;

CREATE TABLE workers (worker TEXT PRIMARY KEY, seen_at REAL NOT NULL) WITHOUT ROWID;

CREATE INDEX keys_by_expiry ON idempotency_keys (expires_at);

CREATE TRIGGER runs_take_their_log AFTER DELETE ON runs
BEGIN
    DELETE FROM run_steps WHERE run_id = OLD.run_id;
    DELETE FROM run_events WHERE run_id = OLD.run_id;
    DELETE FROM run_traces WHERE run_id = OLD.run_id;
END;
