-- Documents belong to the operator (the name is empty) or to a tenant. Documents without a stamp came over HTTP or from a
-- command, before they had an owner.
CREATE TABLE owners (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);

INSERT INTO owners (id, name) VALUES (0, '');

INSERT INTO owners (id, name) SELECT 1, 'default' WHERE EXISTS (SELECT 1 FROM documents WHERE stamp = '');

CREATE TABLE owned (
    number INTEGER PRIMARY KEY,
    owner INTEGER NOT NULL,
    id TEXT NOT NULL,
    hash TEXT NOT NULL,
    stamp TEXT NOT NULL,
    metadata TEXT NOT NULL,
    UNIQUE (owner, id)
);

INSERT INTO owned (owner, id, hash, stamp, metadata)
SELECT CASE stamp WHEN '' THEN 1 ELSE 0 END, id, hash, stamp, metadata FROM documents;

-- AUTOINCREMENT: ids are never reused, so that an index in memory recognizes new vectors by their ids
CREATE TABLE owned_chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL
);

INSERT INTO owned_chunks (id, document, start, "end")
SELECT chunks.id, owned.number, chunks.start, chunks."end" FROM chunks JOIN owned ON owned.id = chunks.document;

-- The owner is a word of the index, so that a search never reads the words of others: the number of the owner behind U+E000,
-- which no sought word has.
CREATE VIRTUAL TABLE owned_words USING fts5 (
    owner, title, heading, body, tokenize = 'porter unicode61 remove_diacritics 2'
);

INSERT INTO owned_words (rowid, owner, title, heading, body)
SELECT words.rowid, char(57344) || owned.owner, words.title, words.heading, words.body
FROM words JOIN owned_chunks ON owned_chunks.id = words.rowid JOIN owned ON owned.number = owned_chunks.document;

DROP TABLE words;

DROP TABLE chunks;

DROP TABLE documents;

ALTER TABLE owned RENAME TO documents;

ALTER TABLE owned_chunks RENAME TO chunks;

ALTER TABLE owned_words RENAME TO words;

CREATE INDEX chunks_by_document ON chunks (document);

ALTER TABLE vectors ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;

UPDATE vectors SET owner = 1
WHERE chunk IN (SELECT chunks.id FROM chunks JOIN documents ON documents.number = chunks.document WHERE documents.owner = 1);

CREATE INDEX vectors_by_owner ON vectors (owner, embedder, chunk);
