CREATE TABLE astromesh.runs (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    parent TEXT NOT NULL,
    status TEXT NOT NULL,
    durable BOOLEAN NOT NULL,
    segment INTEGER NOT NULL,
    worker TEXT NOT NULL,
    priority INTEGER NOT NULL,
    cancelling BOOLEAN NOT NULL DEFAULT FALSE,
    created_at DOUBLE PRECISION NOT NULL,
    queued_at DOUBLE PRECISION NOT NULL,
    finished_at DOUBLE PRECISION NOT NULL,
    deadline_at DOUBLE PRECISION NOT NULL,
    wake_at DOUBLE PRECISION NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    estimated BOOLEAN NOT NULL,
    request TEXT NOT NULL,
    manifest TEXT,
    caller TEXT NOT NULL,
    result TEXT,
    error TEXT,
    attempts TEXT NOT NULL,
    waiting_for TEXT
);

CREATE INDEX runs_by_owner ON astromesh.runs (tenant, owner, id);

CREATE INDEX runs_by_session ON astromesh.runs (tenant, agent, session_id, id);

-- what somebody must look at now and then: only runs that go on
CREATE INDEX runs_open ON astromesh.runs (status, worker) WHERE status IN ('queued', 'running', 'waiting') AND durable;

CREATE INDEX runs_ended ON astromesh.runs (finished_at) WHERE finished_at > 0;

CREATE TABLE astromesh.run_steps (
    run_id TEXT NOT NULL REFERENCES astromesh.runs (run_id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    n INTEGER NOT NULL,
    kind TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    output TEXT,
    PRIMARY KEY (run_id, path, n)
);

CREATE TABLE astromesh.run_events (
    run_id TEXT NOT NULL REFERENCES astromesh.runs (run_id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    ts DOUBLE PRECISION NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
);

-- What a run did, in one row: the events that its trace is made of.
CREATE TABLE astromesh.run_traces (
    run_id TEXT PRIMARY KEY REFERENCES astromesh.runs (run_id) ON DELETE CASCADE,
    events TEXT NOT NULL
);

CREATE INDEX runs_by_trace ON astromesh.runs (trace_id);

CREATE TABLE astromesh.idempotency_keys (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    run_id TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, owner, route, key)
);

CREATE TABLE astromesh.workers (worker TEXT PRIMARY KEY, seen_at DOUBLE PRECISION NOT NULL);

CREATE INDEX keys_by_expiry ON astromesh.idempotency_keys (expires_at);
