-- Queued runs in the order in which they begin: of all agents, and of one with `queue.max_running`.
CREATE INDEX runs_queued ON astromesh.runs (priority, id) WHERE status = 'queued' AND durable = TRUE;

CREATE INDEX runs_queued_of_agent ON astromesh.runs (agent, priority, id) WHERE status = 'queued' AND durable = TRUE;
