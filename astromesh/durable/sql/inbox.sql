-- Queries of the inbox that are the same in every database.

-- name: renew
UPDATE astromesh.inbox_queues SET held_until = $2 WHERE holder = $1 RETURNING queue

-- name: waiting
SELECT seq, id, content FROM astromesh.inbox_letters WHERE queue = $1 AND content IS NOT NULL ORDER BY seq LIMIT $2

-- name: settle
-- The queue first: who waits here for a letter that is being put sees it afterwards.
UPDATE astromesh.inbox_queues SET
    reply = NULL, sent = 0, upto = 0, attempts = 0, holder = '', held_until = 0, updated_at = $3,
    due_at = coalesce((
        SELECT max(l.due_at) FROM astromesh.inbox_letters l WHERE l.queue = $1 AND l.content IS NOT NULL), 0)
WHERE queue = $1 AND holder = $2

-- name: release
UPDATE astromesh.inbox_queues SET holder = '', held_until = 0, due_at = $3, attempts = $4
WHERE queue = $1 AND holder = $2

-- name: release_holder
UPDATE astromesh.inbox_queues SET holder = '', held_until = 0 WHERE holder = $1

-- name: fate
SELECT state, code FROM astromesh.inbox_sent WHERE id = $1
