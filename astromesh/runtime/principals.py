"""Everything that was kept for one principal: erased, over all stores."""

from __future__ import annotations

from astromesh.runtime.engine import AgentRuntime
from astromesh.storage.database import Database


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
    for erase in runtime.opened.erasers:
        count += await erase(tenant, principal)
    for database in runtime.opened.resources.of_type(Database):
        await database.scrub()
    return count
