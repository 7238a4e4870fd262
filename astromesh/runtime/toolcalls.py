"""One call of an agent's tool without its model: how `astromesh tools call` tries a tool."""

from __future__ import annotations

import difflib

from astromesh.errors import InvalidInput
from astromesh.node.ledger import RunLedger
from astromesh.node.scope import Scope
from astromesh.runtime import ids
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.types import CallerContext, SessionKey, ToolCall, ToolResult, calling_as


def who_has(runtime: AgentRuntime, tool: str) -> Agent:
    """The one agent that has a tool.

    Raises:
        InvalidInput: none or several have it.
    """
    agents = runtime.agents.values()
    having = [agent for agent in agents if tool in _names(agent)]
    if len(having) == 1:
        return having[0]
    if having:
        names = ", ".join(agent.name for agent in having)
        raise InvalidInput(f"Several agents have a tool {tool!r}: {names}. Name one with --agent.")
    known = sorted({name for agent in agents for name in _names(agent)})
    near = difflib.get_close_matches(tool, known, 1)
    missing = sorted({sentence for agent in agents for sentence in agent.tools.missing()})
    hint = f"Did you mean {near[0]!r}?" if near else "'astromesh tools list' shows what there is."
    raise InvalidInput(" ".join([f"No agent has a tool {tool!r}. {hint}", *missing]))


async def call_tool(
    runtime: AgentRuntime, agent: Agent, tool: str, arguments: str, caller: CallerContext | None = None
) -> ToolResult:
    """What the model would be told: behind the agent's permissions, limits and checks of arguments.

    Args:
        arguments: as a model writes them, JSON text.
        caller: in whose name; None is the local anonymous principal.
    """
    run_id = ids.run_id()
    tenant = caller.tenant_id if caller and caller.tenant_id else "default"
    scope = Scope(
        run_id, agent=agent.name, session=SessionKey(tenant, agent.name, f"call-{run_id}"), caller=caller,
        trace_id=ids.trace_id(), ledger=RunLedger(agent.budget), clock=runtime.clock,
    )  # fmt: skip
    with calling_as(caller):
        await agent.tools.prepare()
        return await agent.tools.execute(
            ToolCall("call_1", tool, arguments), scope.tool_context("call_1", tool)
        )


def _names(agent: Agent) -> set[str]:
    return {spec.name for spec in agent.tools.specs()}
