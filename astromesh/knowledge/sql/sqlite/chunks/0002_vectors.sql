-- AUTOINCREMENT: ids are never reused, so that an index in memory recognizes new vectors by their ids
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

-- the number of documents that were ever removed or replaced
CREATE TABLE removals (count INTEGER NOT NULL);

INSERT INTO removals VALUES (0);
