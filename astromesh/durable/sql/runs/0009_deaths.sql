-- How many processes in a row have died while they executed the run, without a step of it that ended between.
ALTER TABLE astromesh.runs ADD COLUMN deaths BIGINT NOT NULL DEFAULT 0;
