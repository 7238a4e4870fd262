-- What is reserved now, apart from what is spent: a reservation ends with the process that made it.
CREATE TABLE astromesh.budget_holds (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    name TEXT NOT NULL,
    run_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    tokens DOUBLE PRECISION NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    tool_calls DOUBLE PRECISION NOT NULL,
    wall_seconds DOUBLE PRECISION NOT NULL
);

CREATE INDEX holds_by_account ON astromesh.budget_holds (tenant, agent, name);
CREATE INDEX holds_by_holder ON astromesh.budget_holds (holder);
