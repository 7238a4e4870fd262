-- Every search and every change names tenant ($1), agent ($2) and owner ($3). {space}, {type} and {size} are put in as
-- numbers and a type's name that astromesh chose: an index over a part of a table is found by constants alone.

-- name: space
SELECT id FROM astromesh.spaces WHERE name = $1

-- name: make_space
INSERT INTO astromesh.spaces (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id

-- name: index
CREATE INDEX IF NOT EXISTS passages_near_{space} ON astromesh.passages
USING hnsw ((embedding::{type}({size})) {type}_ip_ops) WHERE space = {space}

-- name: add
-- The same content again is the same passage: it is told from its newest source.
INSERT INTO astromesh.passages AS p
    (tenant, agent, owner, hash, session_id, content, metadata, created_at, expires_at, space, embedding)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::REAL[]::vector)
ON CONFLICT (tenant, owner, agent, hash) DO UPDATE
SET session_id = excluded.session_id, metadata = excluded.metadata, created_at = excluded.created_at,
    expires_at = excluded.expires_at, space = coalesce(excluded.space, p.space),
    embedding = coalesce(excluded.embedding, p.embedding)

-- name: trim
DELETE FROM astromesh.passages WHERE tenant = $1 AND agent = $2 AND owner = $3 AND id <= (
    SELECT id FROM astromesh.passages WHERE tenant = $1 AND agent = $2 AND owner = $3
    ORDER BY id DESC LIMIT 1 OFFSET $4)

-- name: near_exactly
-- All vectors of a scope that has few: exact, and the scope's index finds them.
WITH mine AS MATERIALIZED (
    SELECT id, embedding FROM astromesh.passages
    WHERE tenant = $1 AND agent = $2 AND owner = $3 AND space = {space} LIMIT $6)
SELECT id, -(embedding <#> $4::REAL[]::vector) AS cosine, (SELECT count(*) FROM mine) AS held
FROM mine ORDER BY embedding <#> $4::REAL[]::vector LIMIT $5

-- name: near
SELECT id, -(embedding::{type}({size}) <#> $4::REAL[]::vector::{type}({size})) AS cosine
FROM astromesh.passages
WHERE tenant = $1 AND agent = $2 AND owner = $3 AND space = {space}
ORDER BY embedding::{type}({size}) <#> $4::REAL[]::vector::{type}({size}) LIMIT $5

-- name: scan_on
-- The index goes on until enough of what it finds belongs to the scope.
SET LOCAL hnsw.iterative_scan = relaxed_order; SET LOCAL hnsw.ef_search = 100

-- name: common
-- The most common words, as the planner knows them; null before it has looked.
SELECT most_common_elems::TEXT::TEXT[] FROM pg_stats
WHERE schemaname = 'astromesh' AND tablename = 'passages' AND attname = 'words'

-- name: stems
SELECT one, tsvector_to_array(to_tsvector('english', one)) FROM unnest($1::TEXT[]) one

-- name: words
-- $4: queries that propose, $9 passages each, $5: all of the words, $6: each of them, $7: any of them.
WITH found AS (
    (SELECT id FROM astromesh.passages
     WHERE tenant = $1 AND agent = $2 AND owner = $3 AND words @@ to_tsquery('english', $5) LIMIT 250)
    UNION
    (SELECT proposed.id FROM unnest($4::TEXT[]) one, LATERAL (
        SELECT id FROM astromesh.passages
        WHERE tenant = $1 AND agent = $2 AND owner = $3 AND words @@ to_tsquery('english', one) LIMIT $9) proposed)
), ranked AS (
    SELECT p.id, p.words, ts_rank(p.words, to_tsquery('english', $7), 1) AS rank,
        (SELECT count(*) FROM unnest($6::TEXT[]) one WHERE p.words @@ to_tsquery('english', one)) AS matched
    FROM found JOIN astromesh.passages p ON p.id = found.id
)
SELECT id, rank, matched FROM ranked ORDER BY matched DESC, rank DESC, id LIMIT $8

-- name: passages
SELECT id, content, metadata, CASE WHEN space = $6 THEN -(embedding <#> $7::REAL[]::vector) END
FROM astromesh.passages
WHERE tenant = $1 AND agent = $2 AND owner = $3 AND id = ANY($4::BIGINT[]) AND (expires_at = 0 OR expires_at > $5)

-- name: owned
-- Of all agents: the one query that names no agent.
SELECT id, agent, content, metadata FROM astromesh.passages
WHERE tenant = $1 AND owner = $2 AND id > $3 AND (expires_at = 0 OR expires_at > $4) ORDER BY id LIMIT $5

-- name: erase
DELETE FROM astromesh.passages WHERE tenant = $1 AND agent = $2 AND session_id = $3 RETURNING 1

-- name: erase_owner
DELETE FROM astromesh.passages WHERE id IN (
    SELECT id FROM astromesh.passages WHERE tenant = $1 AND owner = $2 LIMIT $3)
RETURNING 1

-- name: expire
DELETE FROM astromesh.passages WHERE id IN (
    SELECT id FROM astromesh.passages WHERE expires_at > 0 AND expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING 1
