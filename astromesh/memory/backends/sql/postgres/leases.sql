-- name: take
-- A taken lease gets its token under the lock of its row: tokens grow in the order in which holders take it.
INSERT INTO astromesh.session_leases AS l (tenant, agent, session_id, holder, expires_at)
VALUES ($1, $2, $3, $4, $6)
ON CONFLICT (tenant, agent, session_id) DO UPDATE
SET token = nextval('astromesh.session_leases_token_seq'), holder = excluded.holder, expires_at = excluded.expires_at, interrupted = FALSE
WHERE l.expires_at <= $5 OR l.holder = excluded.holder
RETURNING token

-- name: renew
UPDATE astromesh.session_leases l SET expires_at = $5
FROM unnest($1::TEXT[], $2::TEXT[], $3::TEXT[], $4::BIGINT[]) AS h (tenant, agent, session_id, token)
WHERE l.tenant = h.tenant AND l.agent = h.agent AND l.session_id = h.session_id AND l.token = h.token
RETURNING l.token, l.interrupted
