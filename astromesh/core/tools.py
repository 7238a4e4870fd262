"""The tool registry: step 6, which tools an agent may see, and step 9, the calls of them (document 001).

Every agent has its own `AgentTools`, the tool seam as its runs see it. What stands between a call and the
tool is a row of layers (`core.tool_layers`), put together once when the agent is bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.tool import RateLimit, Tool, ToolContext, ToolPolicy
from astromesh.config.agent import ToolBlock
from astromesh.core.tool_layers import (
    DeclaredTool,
    Invoke,
    Layer,
    arguments,
    idempotency,
    layered,
    permission,
    rate_limit,
    time_limit,
)  # fmt: skip
from astromesh.errors import AgentNotFoundError, ConfigError, InvalidToolCall
from astromesh.node.tool_results import settle, unknown_tool
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec

#: the usual rule of thumb for English text; exact counts would need every model's own tokenizer
_CHARACTERS_PER_TOKEN = 4
_DEFAULT = ToolPolicy()


def declared(tool: Tool, block: ToolBlock) -> DeclaredTool:
    """A tool as its YAML block declares it: what the block does not say stays the tool's own."""
    spec = replace(
        tool.spec,
        name=block.name,
        description=block.description or tool.spec.description,
        parameters=block.parameters or tool.spec.parameters,
        effect=block.effective_effect or tool.spec.effect,
    )
    return DeclaredTool(spec, tool, policy_of(block))


def policy_of(block: ToolBlock) -> ToolPolicy:
    """How a tool may be used, from its YAML block; also for each tool that a block of several stands for."""
    limit = block.rate_limit
    return ToolPolicy(
        timeout_seconds=block.deadline_seconds,
        max_result_tokens=block.max_result_tokens or _DEFAULT.max_result_tokens,
        rate_limit=RateLimit(limit.max_calls, limit.window_seconds) if limit else None,
        idempotency=block.idempotency,
        approval=block.approval,
    )


class ToolRegistry:
    """The tools of all agents.

    Args:
        clock: for rate limits.
        layers: further rules between the checked arguments and the timeout, outermost first, e.g. approval.
    """

    def __init__(self, clock: Clock | None = None, layers: Sequence[Layer] = ()) -> None:
        self._clock = clock or SystemClock()
        self._layers = tuple(layers)
        self._agents: dict[str, AgentTools] = {}

    def bind(
        self,
        agent_name: str,
        tools: Iterable[Tool | DeclaredTool],
        permitted: Collection[str] | None = None,
    ) -> AgentTools:
        """Gives an agent its tools, in place of those it had.

        Args:
            agent_name: the agent that the tools are for.
            tools: in the order in which models see them.
            permitted: names that `permissions.tools` lists, or None where it is absent.

        Raises:
            ConfigError: two tools of one name, a permitted tool that is not declared, or a broken schema.
        """
        own = [tool if isinstance(tool, DeclaredTool) else DeclaredTool(tool.spec, tool) for tool in tools]
        _check_names(agent_name, [tool.spec.name for tool in own], permitted)
        layers = (
            permission(agent_name, permitted), rate_limit(self._clock), arguments, *self._layers, idempotency,
            time_limit,
        )  # fmt: skip
        ways = {tool.spec.name: _Way(layered(tool, layers), tool.policy) for tool in own}
        specs = [tool.spec for tool in own if permitted is None or tool.spec.name in permitted]
        self._agents[agent_name] = bound = AgentTools(agent_name, tuple(specs), ways)
        return bound

    def of(self, agent_name: str) -> AgentTools:
        """The tools of an agent.

        Raises:
            AgentNotFoundError: no tools were bound to such an agent.
        """
        if agent_name not in self._agents:
            raise AgentNotFoundError(agent_name)
        return self._agents[agent_name]

    def schemas(self, agent_name: str) -> list[JsonObject]:
        """Step 6: the JSON Schemas of the permitted tools in the OpenAI function-calling form."""
        return [spec.to_function() for spec in self.of(agent_name).specs()]

    async def execute(
        self,
        tool_name: str,
        arguments: str | Mapping[str, Any],
        agent_name: str,
        context: ToolContext | None = None,
    ) -> Any:
        """Step 9 as document 001 writes it: what the tool answers, or its error.

        Args:
            tool_name: as the model named it.
            arguments: the model's JSON text, or an object.
            agent_name: whose permissions and limits hold.
            context: the run that the call is part of, if any.

        Raises:
            ToolPermissionError, ToolRateLimitError, InvalidToolCall, ToolTimeout, ToolError: the call failed.
        """
        within = context or ToolContext(agent=agent_name, tool=tool_name)
        return await self.of(agent_name).invoke(tool_name, arguments, within)


class _Way(NamedTuple):
    invoke: Invoke
    policy: ToolPolicy


class AgentTools:
    """A `ToolPort`: the tools of one agent behind its permissions and limits. Made by `ToolRegistry.bind`."""

    __slots__ = ("_specs", "_ways", "agent_name")

    def __init__(self, agent_name: str, specs: tuple[ToolSpec, ...], ways: Mapping[str, _Way]) -> None:
        self.agent_name = agent_name
        self._specs = specs
        self._ways = ways

    def specs(self) -> tuple[ToolSpec, ...]:
        """The permitted tools, in declared order."""
        return self._specs

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Exactly one result per call; a failure is a result with `ok=False` that tells the model why.

        Raises:
            LimitReached: a limit of the run was reached.
        """
        way = self._ways.get(call.name)
        limit = (way.policy if way else _DEFAULT).max_result_tokens * _CHARACTERS_PER_TOKEN
        return await settle(call, self.invoke(call.name, call.arguments, context), limit)

    async def invoke(self, name: str, arguments: str | Mapping[str, Any], context: ToolContext) -> Any:
        """What the tool answers.

        Raises:
            ToolError: of every kind.
        """
        way = self._ways.get(name)
        if way is None:
            raise InvalidToolCall(unknown_tool(name, [spec.name for spec in self._specs]))
        return await way.invoke(arguments, context)


def _check_names(agent_name: str, names: Sequence[str], permitted: Collection[str] | None) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"The agent {agent_name!r} has two tools named {twice[0]!r}.")
    missing = sorted(set(permitted or ()) - set(names))
    if missing:
        raise ConfigError(
            f"The agent {agent_name!r} permits the tool {missing[0]!r}, which it does not declare. "
            f"Declared: {', '.join(names) or 'none'}."
        )
