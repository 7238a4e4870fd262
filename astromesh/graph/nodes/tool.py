"""ToolNode: tool calls as a step of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

import orjson

from astromesh.graph.base import PROMPT_KEYWORDS, BaseNode, NodeKeywords
from astromesh.graph.calls import goto_of, tool_message
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import Message, ToolCall, ToolResult

Arguments = Mapping[str, Any] | Callable[[GraphState], Mapping[str, Any]]


class ToolNode(BaseNode):
    """Makes tool calls without asking a model.

    Without `tool` it makes the calls of the last assistant message: the step after a PromptNode with
    `tool_loop=False`. With `tool` it calls that one, and a failed call fails the node.

    Args:
        tool: The name of a tool, one of the engine's or of `tools`. Empty for the pending calls.
        arguments: The arguments of that call: a mapping, or a function of the state. The default are the
            values of `input_keys`.
        keywords: See `NodeKeywords`.
    """

    constructor_keys = ("tool", "arguments")
    ignores: ClassVar[frozenset[str]] = PROMPT_KEYWORDS | {"model_override", "tool_loop"}

    def __init__(
        self, name: str, tool: str = "", arguments: Arguments | None = None, **keywords: Unpack[NodeKeywords]
    ) -> None:
        if tool or not keywords.get("tools"):
            # no model chooses here: any of the engine's tools may be named or pending
            keywords.setdefault("inject_tools", True)
        super().__init__(name, **keywords)
        self.tool, self.arguments = tool, arguments

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if self.tool:
            return await self._call(state, config)
        calls = pending_calls(state.messages)
        if not calls:
            return NodeResult(self.name, error=f"{self.name!r} has no tool call to carry out.")
        results = await config.call_tools(calls, state)
        messages = tuple(map(tool_message, results))
        # the model may correct a failed call: it is not the node's failure
        return NodeResult(
            self.name,
            _values_of(results),
            messages_added=messages,
            is_answer=False,
            next_node=goto_of(results),
        )

    async def _call(self, state: GraphState, config: NodeConfig) -> NodeResult:
        arguments = self._arguments(state)
        if inspect.isawaitable(arguments):
            arguments = await arguments
        text = orjson.dumps(dict(arguments), default=str).decode()
        call = ToolCall(config.scope.call_id(), self.tool, text)
        (result,) = results = await config.call_tools((call,), state)
        failed = "" if result.ok else f"{self.tool}: {result.content}"
        return NodeResult(
            self.name,
            result.value,
            result.content,
            error=failed,
            is_answer=False,
            next_node=goto_of(results),
        )

    def _arguments(self, state: GraphState) -> Any:
        if callable(self.arguments):
            return self.arguments(state)
        if self.arguments is not None:
            return self.arguments
        return {key: state.context[key] for key in self.input_keys if key in state.context}


def pending_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Returns the tool calls of the newest assistant message that have no result yet."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.role == "tool":
            answered.add(message.tool_call_id)
        elif message.role == "assistant":
            return tuple(call for call in message.tool_calls if call.id not in answered)
        else:
            break
    return ()


def _values_of(results: Sequence[ToolResult]) -> Any:
    values = [r.value if r.ok else {"error": r.error, "message": r.content} for r in results]
    return values[0] if len(values) == 1 else values
