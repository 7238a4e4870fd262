CREATE TABLE astromesh.tasks (
    task_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    workflow TEXT NOT NULL,
    start_node TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    fingerprint TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    durable INTEGER NOT NULL,
    caller TEXT NOT NULL,
    metadata TEXT NOT NULL,
    worker TEXT NOT NULL,
    lease_until DOUBLE PRECISION NOT NULL,
    cancelling INTEGER NOT NULL,
    finished_at DOUBLE PRECISION NOT NULL,
    result TEXT
);

CREATE INDEX tasks_of_owners ON astromesh.tasks (tenant, owner, created_at);

CREATE INDEX tasks_that_run ON astromesh.tasks (created_at) WHERE finished_at = 0;

CREATE INDEX tasks_that_ended ON astromesh.tasks (finished_at) WHERE finished_at > 0;

CREATE TABLE astromesh.task_records (
    task_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (task_id, n)
);

CREATE TABLE astromesh.task_artifacts (
    task_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    type TEXT NOT NULL,
    path TEXT NOT NULL,
    node TEXT NOT NULL,
    stage TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    fingerprint TEXT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (task_id, n)
);

CREATE INDEX artifacts_of_nodes ON astromesh.task_artifacts (node, created_at);
