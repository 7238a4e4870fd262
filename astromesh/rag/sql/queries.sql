-- name: known
SELECT id, hash, stamp FROM documents

-- name: put_document
INSERT INTO documents (id, hash, stamp, metadata) VALUES (?, ?, ?, ?)

-- name: put_chunk
INSERT INTO chunks (document, start, "end") VALUES (?, ?, ?)

-- name: put_words
INSERT INTO words (rowid, title, heading, body) VALUES (?, ?, ?, ?)

-- name: touch
UPDATE documents SET stamp = ? WHERE id = ?

-- name: drop_document
DELETE FROM documents WHERE id = ?

-- name: drop_words
DELETE FROM words WHERE rowid IN (SELECT id FROM chunks WHERE document = ?)

-- name: drop_chunks
DELETE FROM chunks WHERE document = ?

-- name: search
SELECT words.rowid, -bm25(words, 2.0, 3.0, 1.0) AS rank
FROM words
WHERE words MATCH ?
ORDER BY rank DESC, words.rowid
LIMIT ?

-- name: search_filtered
SELECT words.rowid, -bm25(words, 2.0, 3.0, 1.0) AS rank
FROM words
JOIN chunks ON chunks.id = words.rowid
JOIN documents ON documents.id = chunks.document
WHERE words MATCH ? AND NOT EXISTS (
    SELECT 1 FROM json_each(?) AS filter
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
ORDER BY rank DESC, words.rowid
LIMIT ?

-- name: has_term
SELECT rowid FROM words WHERE words MATCH ? AND rowid IN (SELECT value FROM json_each(?))

-- name: passage
SELECT chunks.document, words.body, chunks.start, chunks."end", words.heading, documents.metadata
FROM chunks JOIN words ON words.rowid = chunks.id JOIN documents ON documents.id = chunks.document
WHERE chunks.id = ?
