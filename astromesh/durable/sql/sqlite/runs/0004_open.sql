-- The cheap condition first: every run that is noted asks it, and a list is made anew each time.
DROP INDEX runs_open;

CREATE INDEX runs_open ON runs (status, worker) WHERE durable = 1 AND status IN ('queued', 'running', 'waiting');
