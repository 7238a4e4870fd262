"""Everything that was kept for one principal: shown or erased, over all stores."""

from __future__ import annotations

from collections.abc import AsyncIterator

from astromesh.access.scopes import Viewer
from astromesh.core.memory import export_records
from astromesh.durable.run_registry import RunFilter
from astromesh.runtime.engine import AgentRuntime
from astromesh.storage.sqlite import Database
from astromesh.types import JsonObject

#: runs of one principal that are shown
_MOST_RUNS = 100_000


async def principal_data(runtime: AgentRuntime, tenant: str, principal: str) -> AsyncIterator[JsonObject]:
    """Turns, summaries, passages, events and runs of one principal, each with its `kind`.

    Raises:
        StoreUnavailable: a store does not answer; before the first record, where it is away already.
    """
    memories = [agent.memory for agent in runtime.agents.values()]
    async for record in export_records(memories, tenant, principal):
        yield record
    runs, _ = await runtime.runs.list(Viewer(tenant, principal), RunFilter(limit=_MOST_RUNS))
    for run in runs:
        yield {"kind": "run", **run}


async def erase_principal(runtime: AgentRuntime, tenant: str, principal: str) -> int:
    """Deletes sessions, passages, events and runs of one principal; answers how many things that were.

    It may be called again where it failed: what is gone is gone. A run of this principal that still goes on
    keeps what it says when it ends.

    Raises:
        StoreUnavailable: a store does not answer; what the others held is erased.
    """
    count = 0
    for agent in runtime.agents.values():
        count += await agent.memory.erase_owner(tenant, principal)
    for erase in runtime.state.erasers:
        count += await erase(tenant, principal)
    for database in runtime.state.resources.of_type(Database):
        await database.scrub()
    return count
