"""The tools of the agents: lists them, and calls one without a model."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from astromesh.errors import InvalidInput
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry import ids
from astromesh.types import CallerContext, JsonObject, SessionKey, ToolCall, ToolResult, calling_as


def describe_tools(agents: Iterable[Agent]) -> list[JsonObject]:
    """Every tool that some agent may use, in function-calling form, with the agents that may."""
    found: dict[str, JsonObject] = {}
    for agent in agents:
        for spec in agent.tools.specs():
            function = spec.to_function()
            line = found.setdefault(
                f"{spec.name}:{function}",
                {"name": spec.name, "effect": spec.effect, **function, "agents": []},
            )
            line["agents"].append(agent.name)
    return sorted(found.values(), key=lambda tool: (str(tool["name"]), tool["agents"]))


# One call of an agent's tool without its model: how `astromesh tools call` tries a tool.


def agent_with_tool(runtime: AgentRuntime, tool: str) -> Agent:
    """The one agent that has a tool.

    Raises:
        InvalidInput: none or several have it.
    """
    agents = runtime.agents.values()
    having = [agent for agent in agents if tool in _tool_names(agent)]
    if len(having) == 1:
        return having[0]
    if having:
        names = ", ".join(agent.name for agent in having)
        raise InvalidInput(f"Several agents have a tool {tool!r}: {names}. Name one with --agent.")
    known = sorted({name for agent in agents for name in _tool_names(agent)})
    near = difflib.get_close_matches(tool, known, 1)
    missing = sorted({sentence for agent in agents for sentence in agent.tools.missing_tools()})
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
    run_id = ids.new_id("run_")
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


def _tool_names(agent: Agent) -> set[str]:
    return {spec.name for spec in agent.tools.specs()}
