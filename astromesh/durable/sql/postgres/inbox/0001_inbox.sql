-- Who writes to whom, as a keyed digest, and what of it is in work. `due_at` is 0 where nothing waits.
CREATE TABLE astromesh.inbox_queues (
    queue TEXT COLLATE "C" PRIMARY KEY,
    channel TEXT COLLATE "C" NOT NULL,
    tenant TEXT COLLATE "C" NOT NULL,
    principal TEXT COLLATE "C" NOT NULL,
    address BYTEA NOT NULL,
    due_at DOUBLE PRECISION NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    holder TEXT NOT NULL DEFAULT '',
    held_until DOUBLE PRECISION NOT NULL DEFAULT 0,
    reply BYTEA,
    sent INTEGER NOT NULL DEFAULT 0,
    upto BIGINT NOT NULL DEFAULT 0,
    updated_at DOUBLE PRECISION NOT NULL
);

CREATE INDEX inbox_queues_due ON astromesh.inbox_queues (due_at) WHERE due_at > 0;

CREATE INDEX inbox_queues_by_principal ON astromesh.inbox_queues (tenant, principal);

-- Every message by the digest of its id, so that none is taken twice; `content` is NULL once it is answered.
CREATE TABLE astromesh.inbox_letters (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    queue TEXT COLLATE "C" NOT NULL,
    content BYTEA,
    due_at DOUBLE PRECISION NOT NULL,
    received_at DOUBLE PRECISION NOT NULL,
    UNIQUE (channel, id)
);

CREATE INDEX inbox_letters_waiting ON astromesh.inbox_letters (queue, seq) WHERE content IS NOT NULL;

-- What became of messages of ours, by the digest of their ids; `queue` is empty for those of other systems.
CREATE TABLE astromesh.inbox_sent (
    id TEXT COLLATE "C" PRIMARY KEY,
    queue TEXT COLLATE "C" NOT NULL,
    state INTEGER NOT NULL,
    code TEXT NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL
);
