-- The token is the number of the row, which is never reused.
CREATE TABLE session_leases (
    token INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at REAL NOT NULL,
    interrupted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, agent, session_id)
);
