-- Passages by tenant, agent and owner. Vectors of one space, i.e. of one embedder and size, are comparable. Each space has a
-- partial index, which is created on first use.
CREATE EXTENSION IF NOT EXISTS vector;

CREATE TABLE astromesh.spaces (
    id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE astromesh.passages (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant TEXT COLLATE "C" NOT NULL,
    agent TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    hash BYTEA NOT NULL,
    content TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    space INTEGER REFERENCES astromesh.spaces (id),
    embedding vector,
    words TSVECTOR NOT NULL GENERATED ALWAYS AS (to_tsvector('english', left(content, 100000))) STORED,
    UNIQUE (tenant, owner, agent, hash)
);

-- small vectors stay in the row, so that a search of a few hundred passages reads no second table
ALTER TABLE astromesh.passages ALTER COLUMN embedding SET STORAGE MAIN;

CREATE INDEX passages_by_scope ON astromesh.passages (tenant, owner, agent, space, id);

CREATE INDEX passages_by_session ON astromesh.passages (tenant, agent, session_id);

CREATE INDEX passages_by_expiry ON astromesh.passages (expires_at) WHERE expires_at > 0;

-- without a list of pending entries, which every search would read
CREATE INDEX passages_by_words ON astromesh.passages USING gin (words) WITH (fastupdate = off);
