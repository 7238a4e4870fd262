"""The tools of one node: its own, those of the engine that it names, or all of the engine's."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from astromesh.abc.tool import ToolContext, ToolPort
from astromesh.errors import ConfigError, InvalidToolCall
from astromesh.graph.base import BaseNode
from astromesh.node.tool_results import failed, unknown_tool
from astromesh.node.toolbox import NoTools, ToolBox
from astromesh.types import ToolCall, ToolResult, ToolSpec


class NodeTools:
    """A `ToolPort` that holds what one node may call; anything else is answered as unknown.

    Args:
        node: whose tools they are.
        engine: the engine's tools.

    Raises:
        ConfigError: the node names a tool that the engine does not have.
    """

    def __init__(self, node: BaseNode, engine: ToolPort) -> None:
        self._own = ToolBox(tool for tool in node.tools if not isinstance(tool, str))
        self._engine = engine
        own = {spec.name: spec for spec in self._own.specs()}
        self._names = frozenset(own)
        self._specs = {**self._chosen(node, engine), **own}

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._all

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if call.name in self._names:
            return await self._own.execute(call, context)
        if call.name in self._specs:
            return await self._engine.execute(call, context)
        return failed(call, InvalidToolCall(unknown_tool(call.name, tuple(self._specs))))

    @cached_property
    def _all(self) -> tuple[ToolSpec, ...]:
        return tuple(self._specs.values())

    def _chosen(self, node: BaseNode, engine: ToolPort) -> dict[str, ToolSpec]:
        offered = {spec.name: spec for spec in engine.specs()}
        names: Iterable[str] = [tool for tool in node.tools if isinstance(tool, str)]
        for name in names:
            if name not in offered:
                known = ", ".join(offered) or "none"
                raise ConfigError(f"Node {node.name!r} names the tool {name!r}. The engine has: {known}.")
        return offered if node.inject_tools else {name: offered[name] for name in names}


_NONE = NoTools()


def tools_of(node: BaseNode, engine: ToolPort) -> ToolPort:
    """What a node may call. None of the engine's tools, and all of them, need no port of their own.

    Raises:
        ConfigError: the node names a tool that the engine does not have.
    """
    if node.tools:
        return NodeTools(node, engine)
    return engine if node.inject_tools else _NONE
