-- Tokens that models thought, and that services wrote to their caches.
ALTER TABLE astromesh.runs ADD COLUMN reasoning_tokens BIGINT NOT NULL DEFAULT 0;

ALTER TABLE astromesh.runs ADD COLUMN cache_write_tokens BIGINT NOT NULL DEFAULT 0;
