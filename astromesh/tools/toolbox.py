"""A `ToolPort` over plain tools: parses and checks arguments, limits the time of calls, returns failures.

Every call has exactly one result. For an error of the model (an unknown tool, invalid arguments), the result
says what is right. The tools of agents also have permissions and sources: `astromesh.core.tools`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias, cast

from astromesh.errors import ConfigError, InvalidToolCall
from astromesh.telemetry.clock import SystemClock
from astromesh.tools.base import DeclaredTool, Invoke, Tool, ToolContext, ToolPolicy, ToolPort
from astromesh.tools.policies import apply_layers, call_layers
from astromesh.tools.results import CHARACTERS_PER_TOKEN, MAX_RESULT, failed_result, result_of, unknown_tool
from astromesh.types import ToolCall, ToolResult, ToolSpec

#: a tool, or a Python function that becomes one by its type hints and docstring
ToolLike: TypeAlias = "Tool | Callable[..., Any]"

TIMEOUT = 30.0
_CLOCK = SystemClock()


class ToolBox:
    """A `ToolPort` over tools by name.

    Args:
        tools: tools and Python functions; names must differ.
        timeout: seconds of one call; None: limited by the run.
        timeouts: seconds by tool name, instead of `timeout`.
        policies: by tool name, instead of a time limit, and of the keys of `@tool(…)`.

    Raises:
        ConfigError: two tools of one name, or a function that cannot be a tool.
    """

    def __init__(
        self,
        tools: Iterable[ToolLike] = (),
        *,
        timeout: float | None = TIMEOUT,
        timeouts: Mapping[str, float] | None = None,
        policies: Mapping[str, ToolPolicy] | None = None,
    ) -> None:
        self._timeout, self._timeouts = timeout, dict(timeouts or {})
        self._policies = dict(policies or {})
        self._layers = call_layers(_CLOCK)
        self._tools: dict[str, DeclaredTool] = {}
        self._calls: dict[str, Invoke] = {}
        #: characters of a result, of tools that limit them
        self._sizes: dict[str, int] = {}
        for tool in map(as_tool, tools):
            if tool.spec.name in self._tools:
                raise ConfigError(f"There are two tools named {tool.spec.name!r}. Rename one.")
            self._tools[tool.spec.name] = self._declare(tool)
        self._specs = tuple(tool.spec for tool in self._tools.values())

    def _declare(self, tool: Tool) -> DeclaredTool:
        name = tool.spec.name
        seconds = self._timeouts.get(name, self._timeout)
        keys = getattr(tool, "policy", None)  # of `@tool(…)`
        if not keys or name in self._policies:
            limit = ToolPolicy(timeout_seconds=seconds)
            return DeclaredTool(tool.spec, tool, self._policies.get(name, limit))
        # imported on first use: it imports the configuration, which tools without keys do not need
        module = importlib.import_module("astromesh.core.tools")
        declared: DeclaredTool = module.declared(tool)
        if "max_result_tokens" in keys:
            self._sizes[name] = declared.policy.max_result_tokens * CHARACTERS_PER_TOKEN
        if "timeout_seconds" in keys:
            return declared
        return replace(declared, policy=replace(declared.policy, timeout_seconds=seconds))

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        return await result_of(call, self._run(call, context), self._sizes.get(call.name, MAX_RESULT))

    async def _run(self, call: ToolCall, context: ToolContext) -> Any:
        invoke = self._calls.get(call.name)
        if invoke is None:
            invoke = self._calls[call.name] = self._layered(call.name)
        return await invoke(call.arguments, context)

    def _layered(self, name: str) -> Invoke:
        """Returns a tool behind its checks; compiles its schema on its first call."""
        tool = self._tools.get(name)
        if tool is None:
            raise InvalidToolCall(unknown_tool(name, tuple(self._tools)))
        return apply_layers(tool, self._layers)


class CompiledTools:
    """Tools that become a box on first use: what compiles Python functions is imported only then."""

    def __init__(self, tools: Iterable[ToolLike]) -> None:
        self._tools = tuple(tools)

    @cached_property
    def box(self) -> ToolBox:
        """Raises: ConfigError: Two have one name, or one is not a tool."""
        return ToolBox(self._tools)


class JoinedTools:
    """Joins two ports; the first port wins if both have a tool of one name.

    Args:
        first, second: in the order of their tools for the model.
    """

    def __init__(self, first: ToolPort, second: ToolPort) -> None:
        self._first, self._second = first, second
        own = first.specs()
        self._names = frozenset(spec.name for spec in own)
        self._specs = (*own, *(spec for spec in second.specs() if spec.name not in self._names))

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        port = self._first if call.name in self._names else self._second
        return await port.execute(call, context)


class NoTools:
    """A `ToolPort` without tools."""

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        return failed_result(call, InvalidToolCall(unknown_tool(call.name, ())))


def tool_port(tools: ToolPort | Iterable[ToolLike] | None) -> ToolPort:
    """Returns a port over a port, a list of tools and functions, or None."""
    if tools is None:
        return NoTools()
    if hasattr(tools, "execute"):
        return cast("ToolPort", tools)
    return ToolBox(tools)


def as_tool(tool: ToolLike) -> Tool:
    """Returns a tool unchanged, or a Python function as a tool."""
    if hasattr(tool, "spec") and hasattr(tool, "call"):
        return tool
    if not callable(tool):
        raise ConfigError(
            f"{tool!r} is neither a tool nor a function."
            + (" Pass `agent.as_tool()`." if hasattr(tool, "as_tool") else "")
        )
    # imported on first use: it imports pydantic, which graphs without Python functions do not need
    functions = importlib.import_module("astromesh.tools.functions")
    made: Tool = functions.FunctionTool(tool)
    return made
