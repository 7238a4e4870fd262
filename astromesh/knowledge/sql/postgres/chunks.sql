-- astromesh replaces {pipeline}, {space}, {type} and {size} by numbers and a type: PostgreSQL selects partitions and
-- partial indexes by constants only.

-- name: make_pipeline
INSERT INTO astromesh.rag_pipelines (name) VALUES ($1)
ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id

-- name: make_part
CREATE TABLE IF NOT EXISTS astromesh.rag_chunks_{pipeline}
PARTITION OF astromesh.rag_chunks FOR VALUES IN ({pipeline}) WITH (toast_tuple_target = 4096)

-- name: make_space
INSERT INTO astromesh.rag_spaces (name) VALUES ($1)
ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id

-- name: known
SELECT id, hash, stamp FROM astromesh.rag_documents WHERE pipeline = {pipeline} AND owner = $1

-- name: documents
SELECT id, metadata::TEXT FROM astromesh.rag_documents
WHERE pipeline = {pipeline} AND owner = $1 AND id > $2 ORDER BY id LIMIT $3

-- name: document
SELECT d.metadata::TEXT, c.start, c.body, c.heading FROM astromesh.rag_documents d
LEFT JOIN astromesh.rag_chunks_{pipeline} c ON c.owner = d.owner AND c.document = d.id
WHERE d.pipeline = {pipeline} AND d.owner = $1 AND d.id = $2 ORDER BY c.start

-- name: foreign_documents
-- $1: the embedder and a slash; the size of its vectors follows
SELECT c.owner, c.document, coalesce(min(s.name), '')
FROM astromesh.rag_chunks_{pipeline} c LEFT JOIN astromesh.rag_spaces s ON s.id = c.space
WHERE c.owner <> '' AND NOT coalesce(starts_with(s.name, $1), FALSE)
GROUP BY c.owner, c.document ORDER BY c.owner, c.document

-- name: drop_chunks
DELETE FROM astromesh.rag_chunks_{pipeline} WHERE owner = $1 AND document = ANY($2::TEXT[])

-- name: drop_documents
DELETE FROM astromesh.rag_documents WHERE pipeline = {pipeline} AND owner = $1 AND id = ANY($2::TEXT[])

-- name: put_document
INSERT INTO astromesh.rag_documents (pipeline, owner, id, hash, stamp, metadata)
VALUES ({pipeline}, $1, $2, $3, $4, $5::JSONB)
ON CONFLICT (pipeline, owner, id) DO UPDATE
SET hash = excluded.hash, stamp = excluded.stamp, metadata = excluded.metadata

-- name: put_chunk
INSERT INTO astromesh.rag_chunks (pipeline, owner, document, start, "end", heading, body, words, space, embedding)
VALUES (
    {pipeline}, $1, $2, $3, $4, $5, $6,
    setweight(to_tsvector('astromesh.words', $7), 'B') || setweight(to_tsvector('astromesh.words', $8), 'A')
        || to_tsvector('astromesh.words', $9),
    $10, $11::REAL[]::vector
)

-- name: touch
UPDATE astromesh.rag_documents SET stamp = new.stamp
FROM unnest($1::TEXT[], $2::TEXT[]) AS new(id, stamp)
WHERE pipeline = {pipeline} AND owner = $3 AND rag_documents.id = new.id

-- name: stems
-- Each word as a query, stemmed; empty if it is not a word.
SELECT term, plainto_tsquery('astromesh.words', term)::TEXT FROM unnest($1::TEXT[]) AS term

-- name: frequencies
-- The planner's statistics: the number of chunks, and the most common words with their share of the chunks.
SELECT
    (SELECT reltuples FROM pg_class WHERE oid = 'astromesh.rag_chunks_{pipeline}'::REGCLASS) AS chunks,
    most_common_elems::TEXT::TEXT[] AS words, most_common_elem_freqs AS shares
FROM (SELECT 1) AS one LEFT JOIN pg_stats
    ON schemaname = 'astromesh' AND tablename = 'rag_chunks_{pipeline}' AND attname = 'words'

-- name: ranked
-- The first chunks of the owners $4 that each query of $1 finds, up to the number in $2, with a rank for each of the words
-- $3. If $6 is not null: chunks of these documents of the owners $5, one by one.
SELECT id, ARRAY(
    SELECT ts_rank('{0.33, 0.33, 0.66, 1}', words, one.word::TSQUERY, 1)
    FROM unnest($3::TEXT[]) WITH ORDINALITY AS one(word, place) ORDER BY place
) AS ranks
FROM (
    SELECT DISTINCT ON (id) id, words
    FROM unnest($1::TEXT[], $2::INTEGER[]) AS look(query, room) CROSS JOIN LATERAL (
        SELECT id, words FROM astromesh.rag_chunks_{pipeline}
        WHERE {words} @@ look.query::TSQUERY AND owner = ANY($4::TEXT[])
            AND ($6::TEXT[] IS NULL OR (owner, document) IN (SELECT * FROM unnest($5::TEXT[], $6::TEXT[])))
        LIMIT look.room
    ) AS first_ones
) AS found

-- name: near
-- The vector of the query is converted once, not for each row.
SELECT id, -(embedding::{type}({size}) <#> (SELECT $1::REAL[]::vector::{type}({size}))) AS cosine
FROM astromesh.rag_chunks_{pipeline} WHERE space = {space} AND owner = ANY($3::TEXT[]) {filter}
ORDER BY embedding::{type}({size}) <#> (SELECT $1::REAL[]::vector::{type}({size})) LIMIT $2

-- name: scan
SET LOCAL hnsw.iterative_scan = relaxed_order; SET LOCAL hnsw.ef_search = {effort}

-- name: count_vectors
SELECT count(*) FROM (SELECT 1 FROM astromesh.rag_chunks_{pipeline} WHERE space = {space} LIMIT $1) AS first_ones

-- name: has_index
SELECT to_regclass('astromesh.rag_chunks_{pipeline}_near_{space}') IS NOT NULL

-- name: make_index
SET LOCAL maintenance_work_mem = '512MB';
CREATE INDEX IF NOT EXISTS rag_chunks_{pipeline}_near_{space} ON astromesh.rag_chunks_{pipeline}
USING hnsw ((embedding::{type}({size})) {type}_ip_ops) WHERE space = {space}

-- name: tidy
SELECT gin_clean_pending_list(inhrelid::REGCLASS) FROM pg_inherits
WHERE inhparent = 'astromesh.rag_chunks_by_words'::REGCLASS
    AND inhrelid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'astromesh.rag_chunks_{pipeline}'::REGCLASS);
ANALYZE astromesh.rag_chunks_{pipeline}

-- name: documents_with
SELECT owner, id FROM astromesh.rag_documents WHERE pipeline = {pipeline} AND owner = ANY($2::TEXT[]) AND NOT EXISTS (
    SELECT 1 FROM jsonb_each($1::TEXT::JSONB) AS filter
    WHERE NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(filter.value) AS wanted
        WHERE (filter.key = 'document' AND wanted = to_jsonb(rag_documents.id))
        OR metadata -> filter.key = wanted
        OR (jsonb_typeof(metadata -> filter.key) = 'array' AND metadata -> filter.key @> wanted)
    )
)

-- name: passages
SELECT c.id, c.document, c.body, c.start, c."end", c.heading, d.metadata::TEXT
FROM astromesh.rag_chunks_{pipeline} c
JOIN astromesh.rag_documents d ON d.pipeline = {pipeline} AND d.owner = c.owner AND d.id = c.document
WHERE c.id = ANY($1::BIGINT[])
