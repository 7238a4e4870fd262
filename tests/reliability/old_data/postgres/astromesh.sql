BEGIN TRANSACTION;
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
INSERT INTO "api_keys" VALUES('esda43w3224n','old',X'40D52C87932E3AD7E4FA6F0CE760983D1E775681CD8202207ED8AD934519E5FC','agents:run rag:query rag:write runs:decide runs:read sessions:read workflows:read workflows:run','key:esda43w3224n','default',1795417945.4861,0.0,0.0,1795417947.12363,1);
CREATE TABLE schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "schemas" VALUES('keys',1);
COMMIT;
