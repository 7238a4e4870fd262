-- A key is stored as the SHA-256 of its token. `change` counts creations and revocations of the whole table, so that a server
-- reads new ones only. In the last three times, 0 means never.
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
