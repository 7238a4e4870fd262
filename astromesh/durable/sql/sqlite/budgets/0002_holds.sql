-- What is reserved now, apart from what is spent: a reservation ends with the process that made it.
CREATE TABLE budget_holds (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    name TEXT NOT NULL,
    run_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at REAL NOT NULL,
    tokens REAL NOT NULL,
    cost_usd REAL NOT NULL,
    tool_calls REAL NOT NULL,
    wall_seconds REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX holds_by_account ON budget_holds (tenant, agent, name);
CREATE INDEX holds_by_holder ON budget_holds (holder);
