-- Runs of graphs that a program starts, and the steps of their journals.
CREATE TABLE astromesh.graph_runs (
    run_id TEXT PRIMARY KEY,
    graph TEXT NOT NULL,
    status TEXT NOT NULL,
    segment BIGINT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    finished_at DOUBLE PRECISION NOT NULL,
    forked_from TEXT NOT NULL,
    forked_at BIGINT NOT NULL,
    request TEXT NOT NULL
);

CREATE TABLE astromesh.graph_steps (
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    n BIGINT NOT NULL,
    kind TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    output TEXT,
    ordinal BIGINT NOT NULL,
    started_at DOUBLE PRECISION NOT NULL,
    duration_ms DOUBLE PRECISION NOT NULL,
    about TEXT,
    PRIMARY KEY (run_id, path, n)
);

-- Results of nodes with `cache`, across runs.
CREATE TABLE astromesh.graph_cache (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL
);
