-- Queries of the inbox for both databases, written for PostgreSQL (astromesh/storage/queries.py).

-- name: renew
UPDATE astromesh.inbox_queues SET held_until = $2 WHERE holder = $1 RETURNING queue

-- name: pending
SELECT seq, id, content FROM astromesh.inbox_letters WHERE queue = $1 AND content IS NOT NULL ORDER BY seq LIMIT $2

-- name: waiting
SELECT channel, count(*) FROM astromesh.inbox_letters WHERE content IS NOT NULL GROUP BY channel

-- name: retried
SELECT channel, count(*) FROM astromesh.inbox_queues WHERE attempts > 0 GROUP BY channel

-- name: finish
-- After `lock`, so that a message that is stored meanwhile is seen.
UPDATE astromesh.inbox_queues SET
    reply = NULL, sent = 0, upto = 0, attempts = 0, holder = '', held_until = 0, updated_at = $3,
    due_at = coalesce((
        SELECT max(l.due_at) FROM astromesh.inbox_letters l WHERE l.queue = $1 AND l.content IS NOT NULL), 0)
WHERE queue = $1 AND holder = $2

-- name: release
UPDATE astromesh.inbox_queues SET holder = '', held_until = 0, due_at = $3, attempts = $4
WHERE queue = $1 AND holder = $2

-- name: retry_now
UPDATE astromesh.inbox_queues SET due_at = $2 WHERE queue = $1 AND due_at > $2 AND attempts = 0 AND reply IS NULL

-- name: release_holder
UPDATE astromesh.inbox_queues SET holder = '', held_until = 0 WHERE holder = $1

-- name: delivery_status
SELECT state, code FROM astromesh.inbox_sent WHERE id = $1

-- name: add
INSERT INTO astromesh.inbox_letters (channel, id, queue, content, due_at, received_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (channel, id) DO NOTHING

-- name: wake
-- A queue that is tried again, or whose reply is not sent yet, keeps its own time.
INSERT INTO astromesh.inbox_queues AS q (queue, channel, tenant, principal, address, due_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (queue) DO UPDATE SET
    address = excluded.address, updated_at = excluded.updated_at,
    due_at = CASE WHEN q.due_at > 0 AND (q.attempts > 0 OR q.reply IS NOT NULL) THEN q.due_at ELSE excluded.due_at END

-- name: answer
UPDATE astromesh.inbox_queues SET reply = $3, sent = 0, upto = $4, attempts = 0 WHERE queue = $1 AND holder = $2

-- name: delete_contents
UPDATE astromesh.inbox_letters SET content = NULL WHERE queue = $1 AND seq <= $2 AND content IS NOT NULL

-- name: sent
UPDATE astromesh.inbox_queues SET sent = $3, attempts = 0 WHERE queue = $1 AND holder = $2

-- name: add_sent
INSERT INTO astromesh.inbox_sent (id, queue, state, code, updated_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET queue = excluded.queue

-- name: take
UPDATE astromesh.inbox_queues SET holder = $1, held_until = $4
WHERE queue IN (
    SELECT queue FROM astromesh.inbox_queues
    WHERE due_at > 0 AND due_at <= $3 AND held_until <= $3 AND channel = ANY($2::text[])
    ORDER BY due_at LIMIT $5 FOR UPDATE SKIP LOCKED)
RETURNING queue, channel, principal, tenant, address, attempts, reply, sent, upto

-- name: next_due
SELECT min(greatest(due_at, held_until)) FROM astromesh.inbox_queues WHERE due_at > 0 AND channel = ANY($1::text[])

-- name: begin
UPDATE astromesh.inbox_queues SET upto = $3 WHERE queue = $1 AND holder = $2 RETURNING queue

-- name: lock
SELECT 1 FROM astromesh.inbox_queues WHERE queue = $1 FOR UPDATE

-- name: report
-- A row if the state is new; states only grow.
INSERT INTO astromesh.inbox_sent AS s (id, queue, state, code, updated_at) VALUES ($1, '', $2, $4, $3)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, code = excluded.code, updated_at = excluded.updated_at
WHERE s.state < excluded.state
RETURNING queue

-- name: erase_letters
DELETE FROM astromesh.inbox_letters
WHERE queue IN (SELECT queue FROM astromesh.inbox_queues WHERE tenant = $1 AND principal = $2)

-- name: erase_sent
DELETE FROM astromesh.inbox_sent
WHERE queue IN (SELECT queue FROM astromesh.inbox_queues WHERE tenant = $1 AND principal = $2)

-- name: erase_queues
DELETE FROM astromesh.inbox_queues WHERE tenant = $1 AND principal = $2

-- name: expire_letters
DELETE FROM astromesh.inbox_letters WHERE content IS NULL AND received_at < $1

-- name: expire_sent
DELETE FROM astromesh.inbox_sent WHERE updated_at < $1

-- name: expire_queues
DELETE FROM astromesh.inbox_queues WHERE due_at = 0 AND updated_at < $1
