CREATE TABLE astromesh.budget_accounts (
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    tokens DOUBLE PRECISION NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    tool_calls DOUBLE PRECISION NOT NULL,
    wall_seconds DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (kind, tenant, agent, name)
);

CREATE INDEX budgets_by_expiry ON astromesh.budget_accounts (expires_at);
