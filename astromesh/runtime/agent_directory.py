"""The agents of a runtime by name, as they are now and as they were when a run was accepted; their tools."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from astromesh.durable.base import JournalStep
from astromesh.durable.recording import Redactor, has_said
from astromesh.durable.step_view import agent_at
from astromesh.errors import AgentNotFoundError, AstromeshError, InvalidInput, InvalidManifest, ShuttingDown
from astromesh.graph.call_record import hash_of
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import Scope
from astromesh.guardrails.base import Place
from astromesh.runtime.agent import Agent, unavailable_error
from astromesh.runtime.bootstrap import RuntimeState
from astromesh.runtime.config_loader import with_model
from astromesh.runtime.content_capture import HIDDEN, redactor_of
from astromesh.telemetry import ids
from astromesh.telemetry.clock import Clock
from astromesh.text import did_you_mean
from astromesh.types import JsonObject, SessionKey, ToolCall, ToolResult

#: agents of earlier manifests that stay open
_MAX_SNAPSHOTS = 16


class AgentDirectory:
    """The agents of an open runtime.

    Attributes:
        current: What the runtime holds open; None before `bootstrap` and after `close`.
    """

    def __init__(self) -> None:
        self.current: RuntimeState | None = None
        self._snapshots: OrderedDict[tuple[str, str], Agent] = OrderedDict()
        self._opening = asyncio.Lock()

    @property
    def state(self) -> RuntimeState:
        """Raises: ShuttingDown: the runtime is not open."""
        if self.current is None:
            raise ShuttingDown("The runtime is not open: call bootstrap() first, or it is shutting down.")
        return self.current

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The agents that can run."""
        return self.state.agents

    @property
    def broken(self) -> Mapping[str, tuple[InvalidManifest, ...]]:
        """Agents whose manifest has faults, or whose stores could not be opened: `agent_unavailable`."""
        return self.state.broken

    def get(self, name: str) -> Agent:
        """Returns an agent by its name.

        Raises:
            AgentNotFoundError: there is no such agent.
            AgentUnavailable: its manifest has faults, or one of its stores could not be opened.
        """
        state = self.current or self.state
        agent = state.agents.get(name)
        if agent is not None:
            return agent
        if faults := state.broken.get(name):
            raise unavailable_error(name, faults, passing=name in state.recovering)
        raise AgentNotFoundError(name, did_you_mean(name, state.agents) or "GET /v1/agents lists them.")

    async def of_snapshot(self, name: str, snapshot: JsonObject) -> Agent:
        """Returns the agent that a snapshot describes; most often that is the present one.

        Raises:
            AgentNotFoundError, InvalidManifest: the agent cannot be opened any more.
        """
        present = self.state.agents.get(name)
        if present is not None and snapshot in ({}, present.snapshot):
            return present
        reopen = self.state.reopen
        if not snapshot.get("source") or reopen is None:
            return self.get(name)
        key = name, hash_of(snapshot)
        async with self._opening:
            agent = self._snapshots.get(key)
            if agent is None:
                agent = self._snapshots[key] = await reopen(name, snapshot)
                while len(self._snapshots) > _MAX_SNAPSHOTS:
                    self._snapshots.popitem(last=False)
        return agent

    async def nested(self, name: str, above: str, snapshot: JsonObject) -> Agent:
        """Returns an agent that a run of another one starts.

        Args:
            above: The agent of the recorded run above.
            snapshot: Its manifest when the run was accepted: the agents that it starts stay as they were.
                Empty if they do not.

        Raises:
            AgentNotFoundError, InvalidManifest: The agent cannot be opened any more.
        """
        if name not in snapshot.get("agents", {}):
            return self.get(name)
        present = self.state.agents.get(above)
        if present is not None and snapshot == present.snapshot:
            return self.get(name)
        return await self.of_snapshot(name, {**snapshot, "source": snapshot["agents"][name]})

    async def redactors(
        self, steps: Iterable[JournalStep], above: str = "", snapshot: JsonObject | None = None
    ) -> Mapping[str, Redactor | None]:
        """Returns what recorded steps pass before others see them, by their agents; see `as_shown`.

        Args:
            above, snapshot: As of `nested`.
        """
        found: dict[str, Redactor | None] = {}
        snapshot = snapshot or {}
        for name in {agent_at(step.path) for step in steps if has_said(step)}:
            try:
                of_run = self.nested(name, above, snapshot) if name else self.of_snapshot(above, snapshot)
                found[name] = redactor_of(await of_run)
            except AstromeshError:
                found[name] = _hidden  # its rules are not known any more
        return found

    async def with_model(self, agent: Agent, model: str) -> Agent:
        """Returns an agent with another primary model: a name of the same provider, or `provider:name`.

        Raises:
            InvalidInput, ConfigError: it cannot have it.
        """
        manifest = with_model(agent.snapshot, "", model, self.state.plugins.names("providers"))
        return await self.of_snapshot(agent.name, manifest)

    # -- tools ---------------------------------------------------------------------------------------------

    def with_tool(self, tool: str) -> Agent:
        """Returns the one agent that has a tool.

        Raises:
            InvalidInput: none or several have it.
        """
        agents = self.agents.values()
        having = [agent for agent in agents if tool in _tool_names(agent)]
        if len(having) == 1:
            return having[0]
        if having:
            names = ", ".join(agent.name for agent in having)
            raise InvalidInput(f"Several agents have a tool {tool!r}: {names}. Name one with --agent.")
        known = {name for agent in agents for name in _tool_names(agent)}
        missing = sorted({sentence for agent in agents for sentence in agent.tools.missing_tools()})
        hint = did_you_mean(tool, known) or "`astromesh tools list` shows all tools."
        raise InvalidInput(" ".join([f"No agent has a tool {tool!r}. {hint}", *missing]))


def _hidden(value: Any, place: Place) -> Any:
    """A redactor that leaves nothing."""
    return HIDDEN


def describe_tools(agents: Iterable[Agent]) -> list[JsonObject]:
    """Returns every tool of some agent in function-calling form, with the agents that may use it."""
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


async def call_tool(agent: Agent, tool: str, arguments: str, clock: Clock) -> ToolResult:
    """Calls a tool of an agent without a model, as the local anonymous principal.

    The agent's permissions, limits and checks of arguments apply.

    Args:
        arguments: JSON text, as a model writes it.
    """
    run_id = ids.new_id("run_")
    scope = Scope(
        run_id,
        agent=agent.name,
        session=SessionKey("default", agent.name, f"call-{run_id}"),
        caller=None,
        trace_id=ids.trace_id(),
        ledger=RunLedger(agent.budget),
        clock=clock,
    )
    await agent.tools.prepare()
    return await agent.tools.execute(ToolCall("call_1", tool, arguments), scope.tool_context("call_1", tool))


def _tool_names(agent: Agent) -> set[str]:
    return {spec.name for spec in agent.tools.specs()}
