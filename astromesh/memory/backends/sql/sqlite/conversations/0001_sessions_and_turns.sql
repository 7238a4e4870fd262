-- A session and its turns. Turns refer to the id: new sessions are at the end of both tables, so that sessions that are
-- written together share pages. Turns are deleted with their session, so that a reused id has none.
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    summary TEXT,
    upto INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, agent, session_id)
);

CREATE INDEX sessions_by_owner ON sessions (tenant, owner, agent, session_id);

CREATE INDEX sessions_by_expiry ON sessions (expires_at) WHERE expires_at > 0;

CREATE TABLE turns (
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at REAL NOT NULL,
    run_id TEXT NOT NULL,
    status TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

CREATE TRIGGER sessions_take_their_turns AFTER DELETE ON sessions
BEGIN
    DELETE FROM turns WHERE session = OLD.id;
END;
