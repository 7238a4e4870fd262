BEGIN TRANSACTION;
PRAGMA writable_schema=ON;
INSERT INTO sqlite_master(type,name,tbl_name,rootpage,sql)VALUES('table','passage_words','passage_words',0,'CREATE VIRTUAL TABLE passage_words USING fts5 (
    scope, content, content = ''passages'', content_rowid = ''id'', tokenize = "porter unicode61 remove_diacritics 2"
)');
CREATE TABLE 'passage_words_config'(k PRIMARY KEY, v) WITHOUT ROWID;
INSERT INTO "passage_words_config" VALUES('version',4);
CREATE TABLE 'passage_words_data'(id INTEGER PRIMARY KEY, block BLOB);
INSERT INTO "passage_words_data" VALUES(1,X'020206');
INSERT INTO "passage_words_data" VALUES(10,X'000000000102020002010101020101');
INSERT INTO "passage_words_data" VALUES(137438953473,X'000000290230310102020102617201060101030104626F746801060101020104646F6E6501060101040406090B');
INSERT INTO "passage_words_data" VALUES(274877906945,X'000000290230310202020102617202060101030104626F746802060101020104646F6E6502060101040406090B');
CREATE TABLE 'passage_words_docsize'(id INTEGER PRIMARY KEY, sz BLOB);
INSERT INTO "passage_words_docsize" VALUES(1,X'0103');
INSERT INTO "passage_words_docsize" VALUES(2,X'0103');
CREATE TABLE 'passage_words_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID;
INSERT INTO "passage_words_idx" VALUES(1,X'',2);
INSERT INTO "passage_words_idx" VALUES(2,X'',2);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    scope INTEGER NOT NULL,
    hash BLOB NOT NULL,
    session_id TEXT NOT NULL,
    content TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    space TEXT NOT NULL,
    vector BLOB,
    UNIQUE (scope, hash)
);
INSERT INTO "passages" VALUES(1,1,X'05B31D5610487F4DF8F8347A830432EC','s-1','Both are done.','{"source":"conversation","session_id":"s-1","run_id":"run_01M83KZ73G86EB8SY7X4ZG54Q2"}',1795417939.064291,0.0,'hashing/1/16:16',X'00000000000000003ACD93BE00000000000000003ACD133F00000000000000003ACD133F3ACD933E3ACD93BE00000000000000003ACD933E0000000000000000');
INSERT INTO "passages" VALUES(2,1,X'B8DDD2C666DC7C62F60D1096EF19EB81','s-1','Both are done. ','{"source":"conversation","session_id":"s-1","run_id":"run_01M83KZ7D6XXM4YP3DE79RC0P9"}',1795417939.385532,0.0,'hashing/1/16:16',X'00000000000000003ACD93BE00000000000000003ACD133F00000000000000003ACD133F3ACD933E3ACD93BE00000000000000003ACD933E0000000000000000');
CREATE TABLE schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "schemas" VALUES('passages',1);
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    owner TEXT NOT NULL,
    removed INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, owner, agent)
);
INSERT INTO "scopes" VALUES(1,'default','teller','key:ycj34zavvrvp',0);
CREATE INDEX passages_by_space ON passages (scope, space, id);
CREATE INDEX passages_by_session ON passages (scope, session_id);
CREATE INDEX passages_by_expiry ON passages (expires_at) WHERE expires_at > 0;
CREATE TRIGGER passages_are_counted_out AFTER DELETE ON passages
BEGIN
    UPDATE scopes SET removed = removed + 1 WHERE id = OLD.scope;
END;
PRAGMA writable_schema=OFF;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('scopes',1);
INSERT INTO "sqlite_sequence" VALUES('passages',2);
COMMIT;
