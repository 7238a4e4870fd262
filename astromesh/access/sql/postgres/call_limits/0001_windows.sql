-- The calls of each principal in the current window and the one before. `at`: the time of the last call, in windows.
CREATE UNLOGGED TABLE astromesh.call_windows (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    calls BIGINT NOT NULL,
    earlier BIGINT NOT NULL,
    granted BIGINT NOT NULL,
    PRIMARY KEY (tenant, owner)
);
