CREATE TABLE budget_accounts (
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    expires_at REAL NOT NULL,
    tokens REAL NOT NULL,
    cost_usd REAL NOT NULL,
    tool_calls REAL NOT NULL,
    wall_seconds REAL NOT NULL,
    PRIMARY KEY (kind, tenant, agent, name)
) WITHOUT ROWID;

CREATE INDEX budgets_by_expiry ON budget_accounts (expires_at);
