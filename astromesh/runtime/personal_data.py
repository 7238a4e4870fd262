"""Exports and erases everything that the stores hold of one principal."""

from __future__ import annotations

from collections.abc import AsyncIterator

from astromesh.core.memory import export_records
from astromesh.durable.base import RunQuery, ScheduleQuery
from astromesh.knowledge.base import StoredFact
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.schedules import MAX_SCHEDULES, schedule_json
from astromesh.storage.sqlite import Database
from astromesh.types import JsonObject

#: runs of one page of an export
_PAGE = 1_000


async def principal_data(runtime: AgentRuntime, tenant: str, principal: str) -> AsyncIterator[JsonObject]:
    """Yields turns, summaries, passages, events, runs and schedules of one principal, each with its `kind`.

    Raises:
        StoreUnavailable: a store does not answer; before the first record if possible.
    """
    memories = [agent.memory for agent in runtime.agents.values()]
    async for record in export_records(memories, tenant, principal):
        yield record
    query: RunQuery | None = RunQuery(tenant, principal, limit=_PAGE)
    while query is not None:
        page = await runtime.runs.list(query)
        for run in page.runs:
            yield {"kind": "run", **run}
        query = query._replace(after=page.next) if page.next else None
    for one in await runtime.schedules.list(ScheduleQuery(tenant, principal, limit=2 * MAX_SCHEDULES)):
        yield {"kind": "schedule", **schedule_json(one)}


async def facts_about(runtime: AgentRuntime, tenant: str, principal: str) -> list[JsonObject]:
    """Returns the facts about one principal, each once even if agents share a store.

    Raises:
        StoreUnavailable: a store does not answer.
    """
    found: dict[tuple[str, str], StoredFact] = {}
    for agent in runtime.agents.values():
        facts = await agent.memory.facts(tenant, principal)
        found.update({(one.agent, one.id): one for one in facts})
    return [
        {"id": one.id, "agent": one.agent, "content": one.content, **one.metadata} for one in found.values()
    ]


async def forget_fact(runtime: AgentRuntime, tenant: str, principal: str, fact: str) -> int:
    """Deletes a fact about one principal with all agents. Returns how many agents had it.

    Raises:
        StoreUnavailable: a store does not answer.
    """
    count = 0
    for agent in runtime.agents.values():
        count += await agent.memory.forget_fact(tenant, principal, fact)
    if count:
        for database in runtime.state.resources.of_type(Database):
            await database.scrub()
    return count


async def erase_principal(runtime: AgentRuntime, tenant: str, principal: str) -> int:
    """Deletes sessions, passages, events, runs, Tasks and schedules of one principal. Returns their number.

    After a failure it can be called again. An active run of this principal stores its turns when it ends.

    Raises:
        StoreUnavailable: a store does not answer; the records of the others are deleted.
    """
    count = 0
    for agent in runtime.agents.values():
        count += await agent.memory.erase_owner(tenant, principal)
    await runtime.load_workflows()
    await runtime.workflows.store_if_used()  # Tasks of other or earlier processes are erased, too
    for erase in runtime.state.erasers:
        count += await erase(tenant, principal)
    for database in runtime.state.resources.of_type(Database):
        await database.scrub()
    return count
