-- Who asks for the state of a plain run of another process. `answer`: NULL until the process that has it answers.
CREATE TABLE run_lookups (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    asked_at REAL NOT NULL,
    answer TEXT
) WITHOUT ROWID;
