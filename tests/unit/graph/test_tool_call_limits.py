"""How many tools a model's turn may call, and how many of them at once: as a run of a graph calls them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from astromesh.graph import PromptGraph, PromptGraphEngine, PromptNode
from astromesh.graph.calls import MAX_CALLS, MAX_CONCURRENT_CALLS
from astromesh.graph.records import GraphResult
from astromesh.tools.base import ToolContext
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    Message,
    ToolCall,
    ToolResult,
    ToolSpec,
)


class Counting:
    """A `ToolPort` that notes how many of its calls are under way."""

    def __init__(self) -> None:
        self.running = self.most = self.calls = 0

    def specs(self) -> tuple[ToolSpec, ...]:
        return (ToolSpec("count"),)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(1 + int(call.id) % 3):  # they end in another order than they began
            await asyncio.sleep(0)
        self.running -= 1
        return ToolResult(call.id, call.name, call.id)


class Asking:
    """A model that asks for so many calls in its first turn and answers in its second."""

    def __init__(self, number: int) -> None:
        self.calls = tuple(ToolCall(str(n), "count") for n in range(number))

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        if request.messages[-1].role == "user":
            return CompletionResult("", self.calls)
        return CompletionResult("Counted.")

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        yield await self.complete(request)


async def turn_of(number: int) -> tuple[Counting, GraphResult]:
    port = Counting()
    graph = PromptGraph(nodes=[PromptNode("ask", instructions="Count.", inject_tools=True)])
    result = await PromptGraphEngine(graph, Asking(number), tools=port).ainvoke("How many?")
    assert result.text == "Counted."
    return port, result


def told(result: GraphResult) -> list[Message]:
    return [message for message in result.messages if message.role == "tool"]


async def test_every_call_has_one_result_in_order_whatever_the_number() -> None:
    for number in (1, 2, MAX_CONCURRENT_CALLS, MAX_CONCURRENT_CALLS + 1, 100, MAX_CALLS + 20):
        port, result = await turn_of(number)
        assert [message.tool_call_id for message in told(result)] == [str(n) for n in range(number)]
        assert port.most == min(number, MAX_CONCURRENT_CALLS)
        assert port.calls == min(number, MAX_CALLS)


async def test_calls_beyond_the_most_are_refused_and_the_model_is_told() -> None:
    _, result = await turn_of(MAX_CALLS + 2)
    assert ["not made" in message.content for message in told(result)[-3:]] == [False, True, True]
    assert len(result.report.tool_calls) == MAX_CALLS
