-- Queued runs of each tenant in the order in which they begin: of all agents, and of one with `queue.max_running`.
CREATE INDEX runs_queued_of_tenant ON astromesh.runs (tenant, priority, id) WHERE status = 'queued' AND durable = TRUE;

CREATE INDEX runs_queued_of_agent_and_tenant ON astromesh.runs (agent, tenant, priority, id)
WHERE status = 'queued' AND durable = TRUE;

DROP INDEX astromesh.runs_queued;

DROP INDEX astromesh.runs_queued_of_agent;
