-- Who writes to whom, as a keyed digest, and what of it is in work. `due_at` is 0 where nothing waits.
CREATE TABLE inbox_queues (
    queue TEXT PRIMARY KEY,
    channel TEXT NOT NULL,
    tenant TEXT NOT NULL,
    principal TEXT NOT NULL,
    address BLOB NOT NULL,
    due_at REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    holder TEXT NOT NULL DEFAULT '',
    held_until REAL NOT NULL DEFAULT 0,
    reply BLOB,
    sent INTEGER NOT NULL DEFAULT 0,
    upto INTEGER NOT NULL DEFAULT 0,
    updated_at REAL NOT NULL
);

CREATE INDEX inbox_queues_due ON inbox_queues (due_at) WHERE due_at > 0;

CREATE INDEX inbox_queues_by_principal ON inbox_queues (tenant, principal);

-- Every message by the digest of its id, so that none is taken twice; `content` is NULL once it is answered.
CREATE TABLE inbox_letters (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    content BLOB,
    due_at REAL NOT NULL,
    received_at REAL NOT NULL,
    UNIQUE (channel, id)
);

CREATE INDEX inbox_letters_waiting ON inbox_letters (queue, seq) WHERE content IS NOT NULL;

-- What became of messages of ours, by the digest of their ids; `queue` is empty for those of other systems.
CREATE TABLE inbox_sent (
    id TEXT PRIMARY KEY,
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    code TEXT NOT NULL,
    updated_at REAL NOT NULL
) WITHOUT ROWID;
