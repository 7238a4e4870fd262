-- A key is stored as the SHA-256 of its token, never as itself. `change` counts creations and revocations over
-- the whole table, so that a server asks only for what is new. 0 stands for never in the three last times.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    scopes TEXT NOT NULL,
    user_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL DEFAULT 0,
    revoked_at REAL NOT NULL DEFAULT 0,
    last_used_at REAL NOT NULL DEFAULT 0,
    change INTEGER NOT NULL UNIQUE
) WITHOUT ROWID;
