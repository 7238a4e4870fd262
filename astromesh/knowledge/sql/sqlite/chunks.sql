-- name: owners
-- The numbers of owners by their names, and how many owners there are.
SELECT id, (SELECT count(*) FROM owners) FROM owners WHERE name IN (SELECT value FROM json_each(?))

-- name: put_owner
INSERT INTO owners (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: drop_owner
DELETE FROM owners
WHERE name = ? AND id <> 0 AND NOT EXISTS (SELECT 1 FROM documents WHERE documents.owner = owners.id)

-- name: known
SELECT documents.id, hash, stamp FROM documents JOIN owners ON owners.id = documents.owner WHERE owners.name = ?

-- name: documents
SELECT documents.id, metadata FROM documents JOIN owners ON owners.id = documents.owner
WHERE owners.name = ? AND documents.id > ? ORDER BY documents.id LIMIT ?

-- name: document
SELECT metadata, chunks.start, words.body, words.heading FROM documents JOIN owners ON owners.id = documents.owner
LEFT JOIN chunks ON chunks.document = documents.number LEFT JOIN words ON words.rowid = chunks.id
WHERE owners.name = ? AND documents.id = ? ORDER BY chunks.start

-- name: foreign_documents
-- A document is embedded whole: its first chunk tells whose vectors it has.
SELECT owners.name, documents.id, coalesce(vectors.embedder, '')
FROM documents JOIN owners ON owners.id = documents.owner
JOIN chunks ON chunks.id = (SELECT min(id) FROM chunks AS own WHERE own.document = documents.number)
LEFT JOIN vectors ON vectors.chunk = chunks.id
WHERE documents.owner <> 0 AND coalesce(vectors.embedder, '') <> ?
ORDER BY owners.name, documents.id

-- name: number
SELECT documents.number FROM documents JOIN owners ON owners.id = documents.owner
WHERE owners.name = ? AND documents.id = ?

-- name: put_document
INSERT INTO documents (owner, id, hash, stamp, metadata) VALUES (?, ?, ?, ?, ?)

-- name: put_chunk
INSERT INTO chunks (document, start, "end") VALUES (?, ?, ?)

-- name: last_row
-- Not RETURNING: that opens a savepoint, at which FTS5 writes its index to the file, for every chunk.
SELECT last_insert_rowid()

-- name: put_words
INSERT INTO words (rowid, owner, title, heading, body) VALUES (?, char(57344) || ?, ?, ?, ?)

-- name: touch
UPDATE documents SET stamp = ? WHERE owner = (SELECT id FROM owners WHERE name = ?) AND id = ?

-- name: drop_document
DELETE FROM documents WHERE number = ?

-- name: drop_words
DELETE FROM words WHERE rowid IN (SELECT id FROM chunks WHERE document = ?)

-- name: drop_chunks
DELETE FROM chunks WHERE document = ?

-- name: put_vector
INSERT INTO vectors (chunk, owner, embedder, vector) VALUES (?, ?, ?, ?)

-- name: drop_vectors
DELETE FROM vectors WHERE chunk IN (SELECT id FROM chunks WHERE document = ?)

-- name: count_removal
UPDATE removals SET count = count + 1

-- name: state
SELECT (SELECT count FROM removals), coalesce((SELECT max(id) FROM chunks), 0)

-- name: count
SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)

-- name: ranked
SELECT row, rank FROM (
    SELECT rowid AS row, -bm25(words, 0.0, 2.0, 3.0, 1.0) AS rank FROM words WHERE words MATCH ? LIMIT ?
)
ORDER BY rank DESC, row
LIMIT ?

-- name: ranked_of
SELECT row, rank FROM (
    SELECT rowid AS row, -bm25(words, 0.0, 2.0, 3.0, 1.0) AS rank
    FROM words
    WHERE words MATCH ?1 AND (SELECT document FROM chunks WHERE chunks.id = words.rowid) IN (SELECT value FROM json_each(?4))
    LIMIT ?2
)
ORDER BY rank DESC, row
LIMIT ?3

-- name: some
SELECT rowid FROM words WHERE words MATCH ? LIMIT ?

-- name: some_of
SELECT rowid
FROM words
WHERE words MATCH ?1 AND (SELECT document FROM chunks WHERE chunks.id = words.rowid) IN (SELECT value FROM json_each(?3))
LIMIT ?2

-- name: has_term
SELECT rowid FROM words WHERE words MATCH ? AND rowid IN (SELECT value FROM json_each(?))

-- name: has_term_between
SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?

-- name: documents_with
SELECT number FROM documents WHERE owner IN (SELECT value FROM json_each(?2)) AND NOT EXISTS (
    SELECT 1 FROM json_each(?1) AS filter
    WHERE NOT EXISTS (
        SELECT 1 FROM json_each(filter.value) AS wanted
        WHERE (filter.key = 'document' AND wanted.value = documents.id)
        OR EXISTS (
            SELECT 1 FROM json_each(documents.metadata) AS has
            LEFT JOIN json_each(CASE has.type WHEN 'array' THEN has.value ELSE json_array(has.value) END) AS one
            WHERE has.key = filter.key AND one.value = wanted.value
        )
    )
)

-- name: chunks_of
SELECT id FROM chunks WHERE document IN (SELECT value FROM json_each(?))

-- name: vector_ids
SELECT chunk FROM vectors WHERE owner = ? AND embedder = ? AND chunk <= ?

-- name: vectors
SELECT chunk, vector FROM vectors
WHERE owner = ? AND embedder = ? AND chunk > ? AND length(vector) = ? ORDER BY chunk

-- name: passage
SELECT documents.id, words.body, chunks.start, chunks."end", words.heading, documents.metadata
FROM chunks JOIN words ON words.rowid = chunks.id JOIN documents ON documents.number = chunks.document
WHERE chunks.id = ?
