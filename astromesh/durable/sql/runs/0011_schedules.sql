-- What begins at times. `instant` is the next time of the cron expression; `due_at` is when somebody looks.
CREATE TABLE astromesh.schedules (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    caller TEXT NOT NULL,
    kind TEXT NOT NULL,
    target TEXT NOT NULL,
    request TEXT NOT NULL,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    jitter DOUBLE PRECISION NOT NULL,
    on_missed TEXT NOT NULL,
    from_file INTEGER NOT NULL,
    paused INTEGER NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    instant DOUBLE PRECISION NOT NULL,
    due_at DOUBLE PRECISION NOT NULL,
    last_at DOUBLE PRECISION NOT NULL,
    last_id TEXT NOT NULL,
    error TEXT NOT NULL
);

CREATE INDEX schedules_due ON astromesh.schedules (due_at) WHERE paused = 0;

CREATE INDEX schedules_of_owner ON astromesh.schedules (tenant, owner);
