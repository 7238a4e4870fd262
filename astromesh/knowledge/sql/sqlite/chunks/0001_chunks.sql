CREATE TABLE documents (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    stamp TEXT NOT NULL DEFAULT '',
    metadata TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;

CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    document TEXT NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL
);

CREATE INDEX chunks_by_document ON chunks (document);

-- the texts of chunks, by chunks.id
CREATE VIRTUAL TABLE words USING fts5 (
    title, heading, body, tokenize = 'porter unicode61 remove_diacritics 2'
);
