-- AUTOINCREMENT: the id of a removed chunk is never given to another one, so that vectors held in memory
-- can be told apart from new ones by their ids alone
CREATE TABLE numbered (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document TEXT NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL
);

INSERT INTO numbered (id, document, start, "end") SELECT id, document, start, "end" FROM chunks;

DROP TABLE chunks;

ALTER TABLE numbered RENAME TO chunks;

CREATE INDEX chunks_by_document ON chunks (document);

-- float32, little-endian, by chunks.id; vectors of different embedders are never compared
CREATE TABLE vectors (
    chunk INTEGER PRIMARY KEY,
    embedder TEXT NOT NULL,
    vector BLOB NOT NULL
);

-- how many documents were ever removed or replaced
CREATE TABLE removals (count INTEGER NOT NULL);

INSERT INTO removals VALUES (0);
