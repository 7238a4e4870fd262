-- name: add
INSERT INTO astromesh.graph_runs VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (run_id) DO NOTHING

-- name: get
SELECT run_id, graph, status, segment, created_at, finished_at, forked_from, forked_at, request
FROM astromesh.graph_runs WHERE run_id = $1

-- name: claim
UPDATE astromesh.graph_runs SET segment = segment + 1, status = 'running'
WHERE run_id = $1 AND status IN ('running', 'waiting')
RETURNING run_id, graph, status, segment, created_at, finished_at, forked_from, forked_at, request

-- name: hold
UPDATE astromesh.graph_runs SET segment = segment WHERE run_id = $1 AND segment = $2 AND status = 'running'

-- name: end
UPDATE astromesh.graph_runs SET status = $3, finished_at = $4
WHERE run_id = $1 AND segment = $2 AND status = 'running'

-- name: store_step
INSERT INTO astromesh.graph_steps VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (run_id, path, n) DO UPDATE
SET kind = excluded.kind, request_hash = excluded.request_hash, state = excluded.state, output = excluded.output,
    ordinal = excluded.ordinal, started_at = excluded.started_at, duration_ms = excluded.duration_ms,
    about = excluded.about

-- name: steps
SELECT path, n, kind, request_hash, state, output, ordinal, started_at, duration_ms, about
FROM astromesh.graph_steps WHERE run_id = $1 ORDER BY ordinal, path, n

-- name: delete
DELETE FROM astromesh.graph_runs WHERE run_id = $1

-- name: delete_steps
DELETE FROM astromesh.graph_steps WHERE run_id = $1

-- name: cached
SELECT value FROM astromesh.graph_cache WHERE key = $1 AND expires_at > $2

-- name: store_cached
INSERT INTO astromesh.graph_cache VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at

-- name: expire_cached
DELETE FROM astromesh.graph_cache WHERE expires_at <= $1
