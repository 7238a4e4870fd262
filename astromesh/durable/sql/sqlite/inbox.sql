-- Queries of inbox of this database alone; the others are in `sql/inbox.sql`.

-- name: add
INSERT INTO inbox_letters (channel, id, queue, content, due_at, received_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (channel, id) DO NOTHING

-- name: wake
-- What is being tried again, or is to be sent still, keeps its own time.
INSERT INTO inbox_queues (queue, channel, tenant, principal, address, due_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (queue) DO UPDATE SET
    address = excluded.address, updated_at = excluded.updated_at,
    due_at = CASE WHEN due_at > 0 AND (attempts > 0 OR reply IS NOT NULL) THEN due_at ELSE excluded.due_at END

-- name: take
UPDATE inbox_queues SET holder = ?1, held_until = ?4
WHERE queue IN (
    SELECT queue FROM inbox_queues
    WHERE due_at > 0 AND due_at <= ?3 AND held_until <= ?3 AND channel IN (SELECT value FROM json_each(?2))
    ORDER BY due_at LIMIT ?5)
RETURNING queue, channel, principal, tenant, address, attempts, reply, sent, upto

-- name: next_due
SELECT min(max(due_at, held_until)) FROM inbox_queues
WHERE due_at > 0 AND channel IN (SELECT value FROM json_each(?))

-- name: begin
UPDATE inbox_queues SET upto = ?3 WHERE queue = ?1 AND holder = ?2

-- name: answer
UPDATE inbox_queues SET reply = ?3, sent = 0, upto = ?4, attempts = 0 WHERE queue = ?1 AND holder = ?2

-- name: forget
UPDATE inbox_letters SET content = NULL WHERE queue = ? AND seq <= ? AND content IS NOT NULL

-- name: sent
UPDATE inbox_queues SET sent = ?3, attempts = 0 WHERE queue = ?1 AND holder = ?2

-- name: note_sent
INSERT INTO inbox_sent (id, queue, state, code, updated_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET queue = excluded.queue

-- name: report
-- A row where this was news; states only grow.
INSERT INTO inbox_sent (id, queue, state, code, updated_at) VALUES (?1, '', ?2, ?4, ?3)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, code = excluded.code, updated_at = excluded.updated_at
WHERE inbox_sent.state < excluded.state
RETURNING queue

-- name: erase_letters
DELETE FROM inbox_letters WHERE queue IN (SELECT queue FROM inbox_queues WHERE tenant = ? AND principal = ?)

-- name: erase_sent
DELETE FROM inbox_sent WHERE queue IN (SELECT queue FROM inbox_queues WHERE tenant = ? AND principal = ?)

-- name: erase_queues
DELETE FROM inbox_queues WHERE tenant = ? AND principal = ?

-- name: expire_letters
DELETE FROM inbox_letters WHERE content IS NULL AND received_at < ?

-- name: expire_sent
DELETE FROM inbox_sent WHERE updated_at < ?

-- name: expire_queues
DELETE FROM inbox_queues WHERE due_at = 0 AND updated_at < ?
