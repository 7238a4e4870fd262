"""Tools that do what a test says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from astromesh.abc.tool import Tool, ToolContext
from astromesh.errors import ToolError
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec


class RecordingTool:
    """A `Tool` that answers a value, raises an error, or asks a function of its arguments.

    `calls` holds the arguments of every call, `contexts` the run each was part of.
    """

    def __init__(
        self, name: str, answer: object = "ok", *, description: str = "", parameters: JsonObject | None = None
    ) -> None:
        schema = parameters or {"type": "object", "properties": {}}
        self.spec = ToolSpec(name, description or name, schema)
        self.calls: list[JsonObject] = []
        self.contexts: list[ToolContext] = []
        self._answer = answer

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        self.calls.append(arguments)
        self.contexts.append(context)
        if isinstance(self._answer, BaseException):
            raise self._answer
        answer = self._answer(**arguments) if callable(self._answer) else self._answer
        return await answer if inspect.isawaitable(answer) else answer


class ScriptedTools:
    """A `ToolPort` without policy: no permissions, limits or validation; failures become results.

    Args:
        tools: by name, a `Tool`, a function of the arguments, an exception, or a value to answer.
    """

    def __init__(self, tools: Mapping[str, Tool | Callable[..., Any] | object] | None = None) -> None:
        self.tools: dict[str, Tool] = {
            name: tool if hasattr(tool, "spec") else RecordingTool(name, tool)  # type: ignore[misc]
            for name, tool in (tools or {}).items()
        }
        self.calls: list[ToolCall] = []

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools.values())

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.calls.append(call)
        tool = self.tools.get(call.name)
        if tool is None:
            return ToolResult(
                call.id, call.name, f"There is no tool {call.name!r}.", False, "invalid_tool_call"
            )
        try:
            value = await tool.call(orjson.loads(call.arguments or "{}"), context)
        except ToolError as error:
            return ToolResult(call.id, call.name, str(error), False, error.code)
        content = value if isinstance(value, str) else orjson.dumps(value).decode()
        return ToolResult(call.id, call.name, content, value=value)
