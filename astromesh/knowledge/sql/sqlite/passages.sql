-- Every search and every change names a scope: tenant, agent and owner.

-- name: scope
SELECT id, removed FROM scopes WHERE tenant = ? AND agent = ? AND owner = ?

-- name: make_scope
INSERT INTO scopes (tenant, agent, owner) VALUES (?, ?, ?)

-- name: same
SELECT id, space FROM passages WHERE scope = ? AND hash = ?

-- name: update_source
-- The same content again replaces the source of its passage.
UPDATE passages SET session_id = ?2, metadata = ?3, created_at = ?4, expires_at = ?5 WHERE id = ?1

-- name: add
INSERT INTO passages (scope, hash, session_id, content, metadata, created_at, expires_at, kind, space, vector)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_words
INSERT INTO passage_words (rowid, scope, content) VALUES (?, ?, ?)

-- name: drop
DELETE FROM passages WHERE id = ?

-- name: drop_words
INSERT INTO passage_words (passage_words, rowid, scope, content) VALUES ('delete', ?, ?, ?)

-- name: forget_words
-- Deleted passages leave their words in older segments of the index until they are merged.
INSERT INTO passage_words (passage_words) VALUES ('optimize')

-- name: vectors
SELECT id, vector FROM passages WHERE scope = ? AND space = ? AND id > ? AND length(vector) = ? ORDER BY id

-- name: vector_ids
SELECT id FROM passages WHERE scope = ? AND space = ? AND id <= ?

-- name: scopes
-- 1 or 2: one scope, or several.
SELECT count(*) FROM (SELECT 1 FROM scopes LIMIT 2)

-- name: newest
SELECT coalesce(max(id), 0) FROM passages

-- name: count
SELECT count(*) FROM (SELECT 1 FROM passage_words WHERE passage_words MATCH ? LIMIT ?)

-- name: ranked
-- If there are too many matches, it ranks the newest.
SELECT row, rank FROM (
    SELECT rowid AS row, -bm25(passage_words, 0.0, 1.0) AS rank
    FROM passage_words WHERE passage_words MATCH ? ORDER BY rowid DESC LIMIT ?
)
ORDER BY rank DESC, row DESC
LIMIT ?

-- name: some
SELECT rowid FROM passage_words WHERE passage_words MATCH ? ORDER BY rowid DESC LIMIT ?

-- name: has_term
SELECT rowid FROM passage_words WHERE passage_words MATCH ? AND rowid IN (SELECT value FROM json_each(?))

-- name: has_term_between
SELECT rowid FROM passage_words WHERE passage_words MATCH ? AND rowid BETWEEN ? AND ?

-- name: passages
SELECT id, content, metadata FROM passages
WHERE +scope = ? AND id IN (SELECT value FROM json_each(?)) AND (expires_at = 0 OR expires_at > ?)

-- name: owned
-- The only query across agents.
SELECT p.id, s.agent, p.content, p.metadata FROM passages p JOIN scopes s ON s.id = p.scope
WHERE s.tenant = ? AND s.owner = ? AND p.id > ? AND (p.expires_at = 0 OR p.expires_at > ?) ORDER BY p.id LIMIT ?

-- name: facts
SELECT p.hash, s.agent, p.content, p.metadata FROM passages p JOIN scopes s ON s.id = p.scope
WHERE s.tenant = ?1 AND s.owner = ?2 AND (?3 = '' OR s.agent = ?3) AND p.kind = 'fact'
    AND (p.expires_at = 0 OR p.expires_at > ?4)
ORDER BY p.created_at DESC, p.id DESC

-- name: fact
SELECT p.id, p.scope, p.content FROM passages p JOIN scopes s ON s.id = p.scope
WHERE s.tenant = ?1 AND s.owner = ?2 AND (?3 = '' OR s.agent = ?3) AND p.kind = 'fact' AND p.hash = ?4 LIMIT ?5

-- name: beyond
SELECT id, scope, content FROM passages WHERE scope = ?1 AND kind = 'passage' ORDER BY id DESC LIMIT -1 OFFSET ?2

-- name: one
SELECT id, scope, content FROM passages WHERE id = ?

-- name: of_session
SELECT id, scope, content FROM passages
WHERE session_id = ?3 AND scope IN (
    SELECT id FROM scopes WHERE tenant = ?1 AND agent = ?2 AND (?4 = '' OR owner = ?4)) LIMIT ?5

-- name: of_owner
SELECT p.id, p.scope, p.content FROM passages p JOIN scopes s ON s.id = p.scope
WHERE s.tenant = ? AND s.owner = ? LIMIT ?

-- name: expired
SELECT id, scope, content FROM passages WHERE expires_at > 0 AND expires_at <= ? LIMIT ?

-- name: erase_scopes
DELETE FROM scopes WHERE tenant = ? AND owner = ? AND NOT EXISTS (SELECT 1 FROM passages WHERE scope = scopes.id)
