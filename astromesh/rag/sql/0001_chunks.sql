CREATE TABLE documents (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    stamp TEXT NOT NULL DEFAULT '',
    metadata TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;

CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    document TEXT NOT NULL,
    title TEXT NOT NULL,
    heading TEXT NOT NULL,
    body TEXT NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL
);

CREATE INDEX chunks_by_document ON chunks (document);

CREATE VIRTUAL TABLE words USING fts5 (
    title, heading, body,
    content = 'chunks', content_rowid = 'id',
    tokenize = 'porter unicode61 remove_diacritics 2'
);

CREATE TRIGGER chunks_added AFTER INSERT ON chunks BEGIN
    INSERT INTO words (rowid, title, heading, body) VALUES (new.id, new.title, new.heading, new.body);
END;

CREATE TRIGGER chunks_removed AFTER DELETE ON chunks BEGIN
    INSERT INTO words (words, rowid, title, heading, body)
    VALUES ('delete', old.id, old.title, old.heading, old.body);
END;
