-- A session and its turns. Keys compare by bytes ("C"), so that every store lists sessions in the same order.
CREATE TABLE astromesh.sessions (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT COLLATE "C" NOT NULL,
    agent TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    last_seq INTEGER NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    summary TEXT,
    upto INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, agent, session_id)
) WITH (fillfactor = 80);

CREATE INDEX sessions_by_owner ON astromesh.sessions (tenant, owner, agent, session_id);

CREATE INDEX sessions_by_expiry ON astromesh.sessions (expires_at) WHERE expires_at > 0;

CREATE TABLE astromesh.turns (
    session BIGINT NOT NULL REFERENCES astromesh.sessions (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    run_id TEXT NOT NULL,
    status TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
);
