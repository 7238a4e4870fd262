-- What may be found again, by tenant, agent and owner. A space is what vectors may be compared within: an embedder and
-- its dimensions. Each has an index of its own over its part of the table, made when it is first used.
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

-- small vectors stay in the row: a search of a few hundred passages then reads no second table
ALTER TABLE astromesh.passages ALTER COLUMN embedding SET STORAGE MAIN;

CREATE INDEX passages_by_scope ON astromesh.passages (tenant, owner, agent, space, id);

CREATE INDEX passages_by_session ON astromesh.passages (tenant, agent, session_id);

CREATE INDEX passages_by_expiry ON astromesh.passages (expires_at) WHERE expires_at > 0;

-- without a list of pending entries, which every search would read through
CREATE INDEX passages_by_words ON astromesh.passages USING gin (words) WITH (fastupdate = off);
