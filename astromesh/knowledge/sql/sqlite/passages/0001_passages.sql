-- Passages by tenant, agent and owner. Ids only grow and are never reused, and vectors never change: an index in memory reads
-- new passages by id, and looks for removed ones when `removed` has changed.
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    owner TEXT NOT NULL,
    removed INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, owner, agent)
);

CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    scope INTEGER NOT NULL,
    hash BLOB NOT NULL,
    session_id TEXT NOT NULL,
    content TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    space TEXT NOT NULL,
    vector BLOB,
    UNIQUE (scope, hash)
);

CREATE INDEX passages_by_space ON passages (scope, space, id);

CREATE INDEX passages_by_session ON passages (scope, session_id);

CREATE INDEX passages_by_expiry ON passages (expires_at) WHERE expires_at > 0;

-- The scope is a word of the index, so that a search never reads the words of others. A trigger cannot maintain it, because
-- that requires a trusted schema.
CREATE VIRTUAL TABLE passage_words USING fts5 (
    scope, content, content = 'passages', content_rowid = 'id', tokenize = "porter unicode61 remove_diacritics 2"
);

CREATE TRIGGER passages_are_counted_out AFTER DELETE ON passages
BEGIN
    UPDATE scopes SET removed = removed + 1 WHERE id = OLD.scope;
END;
