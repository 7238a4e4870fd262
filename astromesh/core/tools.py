"""The tool registry: step 6, which tools an agent may see, and step 9, the calls of them (document 001).

Every agent has its own `AgentTools`, the tool seam as its runs see it. What stands between a call and the
tool is a row of layers (`core.tool_layers`), put together once when the agent is bound.
"""

from __future__ import annotations

import asyncio
import operator
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import structlog

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.kept import KeptResults
from astromesh.abc.tool import RateLimit, Tool, ToolContext, ToolPolicy, ToolSource
from astromesh.config.agent import ApprovalRule, ToolBlock
from astromesh.core.conditions import rule_of
from astromesh.core.tool_layers import (
    DeclaredSource,
    DeclaredTool,
    Invoke,
    Layer,
    approval,
    arguments,
    idempotency,
    identity,
    intent,
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
_DECLARED = (DeclaredTool, DeclaredSource)
#: views that are kept: of callers who are offered different tools
_VIEWS = 64

log = structlog.get_logger("astromesh.tools")


def declared(tool: Tool, block: ToolBlock) -> DeclaredTool:
    """A tool as its YAML block declares it: what the block does not say stays the tool's own."""
    spec = replace(
        tool.spec,
        name=block.name,
        description=block.description or tool.spec.description,
        parameters=block.parameters or tool.spec.parameters,
        effect=block.effective_effect or tool.spec.effect,
        repeatable=block.idempotency == "key" or tool.spec.repeatable,
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
        approval="none" if block.approval == "none" else "required",
        approve_if=rule_of(block.name, block.approval) if isinstance(block.approval, ApprovalRule) else None,
        trusted=block.trusted,
    )


def declared_source(source: ToolSource, block: ToolBlock) -> DeclaredSource:
    """The tools of a source as the one YAML block declares them that stands for all."""
    return DeclaredSource(block.name, source, policy_of(block), block.effective_effect)


class ToolRegistry:
    """The tools of all agents.

    Args:
        clock: for rate limits.
        layers: further rules between the checked arguments and the timeout, outermost first, e.g. approval.
        kept: where results go that are too long for a model; None: nowhere.
    """

    def __init__(
        self, clock: Clock | None = None, layers: Sequence[Layer] = (), kept: KeptResults | None = None
    ) -> None:
        self._clock, self._kept = clock or SystemClock(), kept
        self._layers = tuple(layers)
        self._agents: dict[str, AgentTools] = {}

    def bind(
        self,
        agent_name: str,
        tools: Iterable[Tool | DeclaredTool | DeclaredSource],
        permitted: Collection[str] | None = None,
        *,
        asks_if_tainted: bool = False,
    ) -> AgentTools:
        """Gives an agent its tools, in place of those it had.

        Args:
            agent_name: the agent that the tools are for.
            tools: in the order in which models see them.
            permitted: names that `permissions.tools` lists, or None where it is absent.
            asks_if_tainted: a person approves calls with an external effect in a turn that has read
                untrusted text.

        Raises:
            ConfigError: two tools of one name, a permitted tool that is not declared, or a broken schema.
        """
        given = [tool if isinstance(tool, _DECLARED) else DeclaredTool(tool.spec, tool) for tool in tools]
        sources = tuple(one for one in given if isinstance(one, DeclaredSource))
        own = [one for one in given if isinstance(one, DeclaredTool)]
        names = [tool.spec.name for tool in own]
        _check_names(agent_name, names, () if sources else permitted)
        limited, inner = (
            rate_limit(self._clock),
            (arguments, approval(asks_if_tainted), identity, *self._layers, idempotency, intent, time_limit),
        )
        layers = (permission(agent_name, permitted), limited, *inner)
        ways = {tool.spec.name: _way(tool, layers) for tool in own}
        specs = [tool.spec for tool in own if permitted is None or tool.spec.name in permitted]
        view = _View(tuple(specs), ways)
        bound = AgentTools(agent_name, view)
        if sources:
            bound = LiveAgentTools(agent_name, view, sources, permitted, (limited, *inner))
        bound.kept = self._kept
        self._agents[agent_name] = bound
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
    untrusted: bool


def _way(tool: DeclaredTool, layers: Sequence[Layer]) -> _Way:
    trusted = tool.spec.trusted if tool.policy.trusted is None else tool.policy.trusted
    return _Way(layered(tool, layers), tool.policy, not trusted)


class _View(NamedTuple):
    """The tools of an agent at one time: what models see, and the ways to them."""

    specs: tuple[ToolSpec, ...]
    ways: Mapping[str, _Way]


class AgentTools:
    """A `ToolPort`: the tools of one agent behind its permissions and limits. Made by `ToolRegistry.bind`."""

    __slots__ = ("_own", "agent_name", "kept")

    #: whether tools may come and go; then `prepare` is awaited before a run
    live: ClassVar[bool] = False

    def __init__(self, agent_name: str, own: _View) -> None:
        self.agent_name = agent_name
        self._own = own
        self.kept: KeptResults | None = None

    def specs(self) -> tuple[ToolSpec, ...]:
        """The permitted tools, in declared order."""
        return self._view().specs

    def missing(self) -> tuple[str, ...]:
        """Sentences that say which tools are missing and why."""
        return ()

    async def prepare(self) -> None:
        """Waits, within bounds, for tools that only the current caller is offered."""

    def for_callers_only(self) -> str:
        """The first block of tools whose server lists them to callers with a token only, or nothing."""
        return ""

    def _view(self) -> _View:
        return self._own

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Exactly one result per call; a failure is a result with `ok=False` that tells the model why.

        Raises:
            LimitReached: a limit of the run was reached.
        """
        way = self._view().ways.get(call.name)
        limit = (way.policy if way else _DEFAULT).max_result_tokens * _CHARACTERS_PER_TOKEN
        keep = partial(_keep, self.kept, call.id, context) if self.kept is not None else None
        untrusted = way is not None and way.untrusted
        return await settle(call, self.invoke(call.name, call.arguments, context), limit, keep, untrusted)

    async def invoke(self, name: str, arguments: str | Mapping[str, Any], context: ToolContext) -> Any:
        """What the tool answers.

        Raises:
            ToolError: of every kind.
        """
        view = self._view()
        way = view.ways.get(name)
        if way is None:
            raise InvalidToolCall(unknown_tool(name, [spec.name for spec in view.specs]))
        return await way.invoke(arguments, context)


class LiveAgentTools(AgentTools):
    """The tools of an agent some of which come and go, or differ by caller.

    Args:
        own: tools of its own, which stay; on equal names they win.
        permitted: names that `permissions.tools` lists; one of a source permits all that it offers.
        layers: for each tool of a source, outermost first.
    """

    __slots__ = ("_layers", "_permitted", "_seen", "_sources")
    live: ClassVar[bool] = True

    def __init__(
        self,
        agent_name: str,
        own: _View,
        sources: tuple[DeclaredSource, ...],
        permitted: Collection[str] | None,
        layers: tuple[Layer, ...],
    ) -> None:
        super().__init__(agent_name, own)
        self._sources, self._permitted, self._layers = sources, permitted, layers
        self._seen: deque[tuple[list[tuple[Tool, ...]], _View]] = deque(maxlen=_VIEWS)

    def missing(self) -> tuple[str, ...]:
        return tuple(said for one in self._sources if (said := one.source.missing()))

    async def prepare(self) -> None:
        await asyncio.gather(*(one.source.prepare() for one in self._sources))

    def for_callers_only(self) -> str:
        return next((one.name for one in self._sources if one.source.for_callers_only), "")

    def _view(self) -> _View:
        offered = [one.source.current() for one in self._sources]
        for seen, view in self._seen:
            if all(map(operator.is_, seen, offered)):
                return view
        view = self._build()
        self._seen.appendleft((offered, view))
        return view

    def _build(self) -> _View:
        specs, ways = list(self._own.specs), dict(self._own.ways)
        for source in self._sources:
            for tool in source.declared():
                name = tool.spec.name
                if not self._permits(source.name, name):
                    continue
                if name in ways:
                    log.warning("tool_left_out", agent=self.agent_name, tool=name, reason="its name is taken")
                    continue
                try:
                    ways[name] = _way(tool, self._layers)
                except ConfigError as error:  # its schema is no JSON Schema
                    log.warning("tool_left_out", agent=self.agent_name, tool=name, reason=str(error))
                    continue
                specs.append(tool.spec)
        return _View(tuple(specs), ways)

    def _permits(self, source: str, name: str) -> bool:
        return self._permitted is None or name in self._permitted or source in self._permitted


def _keep(kept: KeptResults, call_id: str, context: ToolContext, text: str) -> str:
    owner = (context.caller.user_id if context.caller else "") or "anonymous"
    return kept.keep(context.run_id, call_id, text, context.session, owner)


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
