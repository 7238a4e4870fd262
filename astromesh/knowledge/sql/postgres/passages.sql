-- Every search and every change names tenant, agent and owner. astromesh replaces {space}, {type} and {size} by
-- numbers and a type: PostgreSQL selects partial indexes by constants only.

-- name: space
SELECT id FROM astromesh.spaces WHERE name = $1

-- name: make_space
INSERT INTO astromesh.spaces (name) VALUES ($1) ON CONFLICT (name) DO NOTHING

-- name: index
CREATE INDEX IF NOT EXISTS passages_near_{space} ON astromesh.passages
USING hnsw ((embedding::{type}({size})) {type}_ip_ops) WHERE space = {space}

-- name: add
-- The same content again replaces the source of its passage.
INSERT INTO astromesh.passages AS p
    (tenant, agent, owner, hash, session_id, content, metadata, created_at, expires_at, kind, space, embedding)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::REAL[]::vector)
ON CONFLICT (tenant, owner, agent, hash) DO UPDATE
SET session_id = excluded.session_id, metadata = excluded.metadata, created_at = excluded.created_at,
    expires_at = excluded.expires_at, space = coalesce(excluded.space, p.space),
    embedding = coalesce(excluded.embedding, p.embedding)

-- name: trim
DELETE FROM astromesh.passages WHERE tenant = $1 AND agent = $2 AND owner = $3 AND kind = 'passage' AND id <= (
    SELECT id FROM astromesh.passages WHERE tenant = $1 AND agent = $2 AND owner = $3 AND kind = 'passage'
    ORDER BY id DESC LIMIT 1 OFFSET $4)

-- name: near_exactly
-- Compares all vectors of a small scope, which is exact.
WITH mine AS MATERIALIZED (
    SELECT id, embedding FROM astromesh.passages
    WHERE tenant = $1 AND agent = $2 AND owner = $3 AND space = {space} LIMIT $6)
SELECT id, -(embedding <#> $4::REAL[]::vector) AS cosine, (SELECT count(*) FROM mine) AS held
FROM mine ORDER BY embedding <#> $4::REAL[]::vector LIMIT $5

-- name: near
SELECT id, -(embedding::{type}({size}) <#> $1::REAL[]::vector::{type}({size})) AS cosine
FROM astromesh.passages
WHERE tenant = $3 AND agent = $4 AND owner = $5 AND space = {space}
ORDER BY embedding::{type}({size}) <#> $1::REAL[]::vector::{type}({size}) LIMIT $2

-- name: scan
-- The index continues until enough of the passages that it finds belong to the scope.
SET LOCAL hnsw.iterative_scan = relaxed_order; SET LOCAL hnsw.ef_search = {effort}

-- name: stems
-- Each word as a query, stemmed; empty if it is not a word.
SELECT term, plainto_tsquery('english', term)::TEXT FROM unnest($1::TEXT[]) AS term

-- name: frequencies
-- The planner's statistics: the number of passages, and the most common words with their share of the passages.
SELECT
    (SELECT reltuples FROM pg_class WHERE oid = 'astromesh.passages'::REGCLASS) AS passages,
    most_common_elems::TEXT::TEXT[] AS words, most_common_elem_freqs AS shares
FROM (SELECT 1) AS one LEFT JOIN pg_stats
    ON schemaname = 'astromesh' AND tablename = 'passages' AND attname = 'words'

-- name: ranked
-- The first passages that each query of $1 finds, up to the number in $2, with a rank for each of the words $3.
SELECT id, ARRAY(
    SELECT ts_rank(words, one.word::TSQUERY, 1)
    FROM unnest($3::TEXT[]) WITH ORDINALITY AS one(word, place) ORDER BY place
) AS ranks
FROM (
    SELECT DISTINCT ON (id) id, words
    FROM unnest($1::TEXT[], $2::INTEGER[]) AS look(query, room) CROSS JOIN LATERAL (
        SELECT id, words FROM astromesh.passages
        WHERE tenant = $4 AND agent = $5 AND owner = $6 AND {words} @@ look.query::TSQUERY LIMIT look.room
    ) AS first_ones
) AS found

-- name: passages
SELECT id, content, metadata, CASE WHEN space = $6 THEN -(embedding <#> $7::REAL[]::vector) END
FROM astromesh.passages
WHERE tenant = $1 AND agent = $2 AND owner = $3 AND id = ANY($4::BIGINT[]) AND (expires_at = 0 OR expires_at > $5)

-- name: owned
-- The only query across agents.
SELECT id, agent, content, metadata FROM astromesh.passages
WHERE tenant = $1 AND owner = $2 AND id > $3 AND (expires_at = 0 OR expires_at > $4) ORDER BY id LIMIT $5

-- name: facts
SELECT hash, agent, content, metadata FROM astromesh.passages
WHERE tenant = $1 AND owner = $2 AND ($3 = '' OR agent = $3) AND kind = 'fact' AND (expires_at = 0 OR expires_at > $4)
ORDER BY created_at DESC, id DESC

-- name: forget
DELETE FROM astromesh.passages
WHERE tenant = $1 AND owner = $2 AND ($3 = '' OR agent = $3) AND kind = 'fact' AND hash = $4
RETURNING 1

-- name: erase
DELETE FROM astromesh.passages WHERE tenant = $1 AND agent = $2 AND session_id = $3 AND ($4 = '' OR owner = $4)
RETURNING 1

-- name: erase_owner
DELETE FROM astromesh.passages WHERE id IN (
    SELECT id FROM astromesh.passages WHERE tenant = $1 AND owner = $2 LIMIT $3)
RETURNING 1

-- name: expire
DELETE FROM astromesh.passages WHERE id IN (
    SELECT id FROM astromesh.passages WHERE expires_at > 0 AND expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING 1
