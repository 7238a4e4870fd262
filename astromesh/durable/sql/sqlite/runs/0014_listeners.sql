-- Who listens to plain runs of other processes, and the events of these runs meanwhile. `owner` '': of any owner.
-- `accepted_at` 0: no process has said that it has the run; `since`: the last event that is no longer there.
CREATE TABLE run_listeners (
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    asked_at REAL NOT NULL,
    accepted_at REAL NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (run_id, tenant, owner)
) WITHOUT ROWID;

CREATE TABLE heard_events (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    ts REAL NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
