-- Queries of the inbox for PostgreSQL alone.

-- name: put
-- Messages as arrays, one for each column. Queues are written in the order of their names, so that two servers never
-- wait for each other in a circle; of several messages of one queue the last one counts.
WITH messages AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bytea[],
        $8::float8[], $9::float8[])
        WITH ORDINALITY AS g (channel, id, queue, tenant, principal, address, content, now, due_at, place)
), added AS (
    INSERT INTO astromesh.inbox_letters (channel, id, queue, content, due_at, received_at)
    SELECT channel, id, queue, content, due_at, now FROM messages ORDER BY place
    ON CONFLICT (channel, id) DO NOTHING
    RETURNING id, queue
), last AS (
    SELECT DISTINCT ON (g.queue) g.* FROM messages g JOIN added a ON a.id = g.id AND a.queue = g.queue
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
