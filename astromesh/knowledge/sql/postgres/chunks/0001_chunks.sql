-- Every pipeline has its own partition of rag_chunks. Vectors of one space, i.e. of one embedder and size, are comparable and
-- have an index there.
CREATE EXTENSION IF NOT EXISTS vector;

-- English stems without stop words: astromesh removes the stop words of a question
CREATE TEXT SEARCH DICTIONARY astromesh.stems (TEMPLATE = pg_catalog.snowball, LANGUAGE = english);

CREATE TEXT SEARCH CONFIGURATION astromesh.words (COPY = pg_catalog.simple);

ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ALTER MAPPING FOR asciiword, asciihword, hword_asciipart, word, hword, hword_part WITH astromesh.stems;

CREATE TABLE astromesh.rag_pipelines (
    id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE astromesh.rag_spaces (
    id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE astromesh.rag_documents (
    pipeline INTEGER NOT NULL REFERENCES astromesh.rag_pipelines (id),
    id TEXT COLLATE "C" NOT NULL,
    hash TEXT NOT NULL,
    stamp TEXT NOT NULL,
    metadata JSONB NOT NULL,
    PRIMARY KEY (pipeline, id)
);

CREATE SEQUENCE astromesh.rag_chunk_ids;

CREATE TABLE astromesh.rag_chunks (
    pipeline INTEGER NOT NULL,
    id BIGINT NOT NULL DEFAULT nextval('astromesh.rag_chunk_ids'),
    document TEXT COLLATE "C" NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL,
    heading TEXT NOT NULL,
    body TEXT NOT NULL,
    words TSVECTOR NOT NULL,
    space INTEGER REFERENCES astromesh.rag_spaces (id),
    embedding vector,
    PRIMARY KEY (pipeline, id)
) PARTITION BY LIST (pipeline);

CREATE INDEX rag_chunks_by_id ON astromesh.rag_chunks (id);

CREATE INDEX rag_chunks_by_document ON astromesh.rag_chunks (document);

-- new entries wait in a list, which every search reads; it is emptied after an ingest
CREATE INDEX rag_chunks_by_words ON astromesh.rag_chunks USING gin (words);
