-- Who listens to plain runs of other processes, and the events of these runs meanwhile. `owner` '': of any owner.
-- `accepted_at` 0: no process has said that it has the run; `since`: the last event that is no longer there.
CREATE UNLOGGED TABLE astromesh.run_listeners (
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    asked_at DOUBLE PRECISION NOT NULL,
    accepted_at DOUBLE PRECISION NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (run_id, tenant, owner)
);

CREATE UNLOGGED TABLE astromesh.heard_events (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    ts DOUBLE PRECISION NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
);
