-- Queries of inbox of this database alone; the others are in `sql/inbox.sql`.

-- name: put
-- Letters as arrays, one by column. Queues are written in the order of their names, so that two servers never
-- wait for one another in a circle; of several letters of one queue the last one counts.
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bytea[],
        $8::float8[], $9::float8[])
        WITH ORDINALITY AS g (channel, id, queue, tenant, principal, address, content, now, due_at, place)
), added AS (
    INSERT INTO astromesh.inbox_letters (channel, id, queue, content, due_at, received_at)
    SELECT channel, id, queue, content, due_at, now FROM given ORDER BY place
    ON CONFLICT (channel, id) DO NOTHING
    RETURNING id, queue
), last AS (
    SELECT DISTINCT ON (g.queue) g.* FROM given g JOIN added a ON a.id = g.id AND a.queue = g.queue
    ORDER BY g.queue, g.place DESC
), woken AS (
    INSERT INTO astromesh.inbox_queues AS q (queue, channel, tenant, principal, address, due_at, updated_at)
    SELECT queue, channel, tenant, principal, address, due_at, now FROM last ORDER BY queue
    ON CONFLICT (queue) DO UPDATE SET
        address = excluded.address, updated_at = excluded.updated_at,
        due_at = CASE
            WHEN q.due_at > 0 AND (q.attempts > 0 OR q.reply IS NOT NULL) THEN q.due_at ELSE excluded.due_at END
    RETURNING 1
)
SELECT count(*) FROM added

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

-- name: answer
WITH held AS (
    UPDATE astromesh.inbox_queues SET reply = $3, sent = 0, upto = $4, attempts = 0
    WHERE queue = $1 AND holder = $2 RETURNING queue
), forgotten AS (
    UPDATE astromesh.inbox_letters l SET content = NULL FROM held
    WHERE l.queue = held.queue AND l.seq <= $4 AND l.content IS NOT NULL
)
SELECT queue FROM held

-- name: sent
WITH held AS (
    UPDATE astromesh.inbox_queues SET sent = $3, attempts = 0 WHERE queue = $1 AND holder = $2 RETURNING queue
), noted AS (
    INSERT INTO astromesh.inbox_sent (id, queue, state, code, updated_at)
    SELECT $4::text, $1, $5::int, $6::text, $7::float8 WHERE $4::text <> ''
    ON CONFLICT (id) DO UPDATE SET queue = excluded.queue
)
SELECT queue FROM held

-- name: lock
SELECT 1 FROM astromesh.inbox_queues WHERE queue = $1 FOR UPDATE

-- name: report
-- A row where this was news; states only grow.
INSERT INTO astromesh.inbox_sent AS s (id, queue, state, code, updated_at) VALUES ($1, '', $2, $4, $3)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, code = excluded.code, updated_at = excluded.updated_at
WHERE s.state < excluded.state
RETURNING queue

-- name: erase_letters
DELETE FROM astromesh.inbox_letters
WHERE queue IN (SELECT queue FROM astromesh.inbox_queues WHERE tenant = $1 AND principal = $2) RETURNING 1

-- name: erase_sent
DELETE FROM astromesh.inbox_sent
WHERE queue IN (SELECT queue FROM astromesh.inbox_queues WHERE tenant = $1 AND principal = $2) RETURNING 1

-- name: erase_queues
DELETE FROM astromesh.inbox_queues WHERE tenant = $1 AND principal = $2 RETURNING 1

-- name: expire_letters
DELETE FROM astromesh.inbox_letters WHERE content IS NULL AND received_at < $1 RETURNING 1

-- name: expire_sent
DELETE FROM astromesh.inbox_sent WHERE updated_at < $1 RETURNING 1

-- name: expire_queues
DELETE FROM astromesh.inbox_queues WHERE due_at = 0 AND updated_at < $1 RETURNING 1
