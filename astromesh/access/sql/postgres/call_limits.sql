-- The rate limits of principals (astromesh/access/call_limits.py has the fragments). $4: seconds of a window, $5: calls.

-- name: take
-- Grants as many of the calls $3 of each principal as there is room for. Rows are locked in one order.
INSERT INTO astromesh.call_windows AS w (tenant, owner, at, calls, earlier, granted)
SELECT a.tenant, a.owner, extract(epoch FROM clock_timestamp()) / $4::float8, least(a.calls, $5::bigint), 0,
    least(a.calls, $5::bigint)
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS a (tenant, owner, calls)
ORDER BY a.tenant, a.owner
ON CONFLICT (tenant, owner) DO UPDATE SET
    at = greatest(w.at, EXCLUDED.at),
    calls = {calls} + least(EXCLUDED.granted, {room}),
    earlier = {earlier},
    granted = least(EXCLUDED.granted, {room})
RETURNING tenant, owner, at, calls, earlier, granted

-- name: expire
DELETE FROM astromesh.call_windows WHERE at < extract(epoch FROM clock_timestamp()) / $1::float8 - 2
