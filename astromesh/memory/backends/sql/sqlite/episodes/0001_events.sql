-- Events by session. Ids grow, so that the newest events of a session come last.
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    expires_at REAL NOT NULL,
    event TEXT NOT NULL
);

CREATE INDEX events_by_session ON events (tenant, agent, session_id, id);

CREATE INDEX events_by_owner ON events (tenant, owner);

CREATE INDEX events_by_expiry ON events (expires_at) WHERE expires_at > 0;
