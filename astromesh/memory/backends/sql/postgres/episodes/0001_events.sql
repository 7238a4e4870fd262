-- Events by session. Ids grow, so that the newest events of a session come last.
CREATE TABLE astromesh.events (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT COLLATE "C" NOT NULL,
    agent TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    event TEXT NOT NULL
);

CREATE INDEX events_by_session ON astromesh.events (tenant, agent, session_id, id);

CREATE INDEX events_by_owner ON astromesh.events (tenant, owner);

CREATE INDEX events_by_expiry ON astromesh.events (expires_at) WHERE expires_at > 0;
