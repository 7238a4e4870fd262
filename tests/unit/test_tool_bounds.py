"""How many tools a model's turn may call, and how many of them at once."""

from __future__ import annotations

import asyncio
from typing import Any

from astromesh.abc.tool import ToolContext
from astromesh.node.calls import AT_ONCE, MOST_CALLS, call_tools
from astromesh.node.scope import Scope
from astromesh.types import ToolCall, ToolResult, ToolSpec


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
        await asyncio.sleep(0.001 * (int(call.id) % 3))
        self.running -= 1
        return ToolResult(call.id, call.name, call.id)


async def results_of(number: int) -> tuple[Counting, list[Any]]:
    port = Counting()
    calls = [ToolCall(str(n), "count") for n in range(number)]
    return port, await call_tools(Scope("run_1"), port, calls)


async def test_every_call_has_one_result_in_order_whatever_the_number() -> None:
    for number in (0, 1, 2, AT_ONCE, AT_ONCE + 1, 100, MOST_CALLS + 20):
        port, results = await results_of(number)
        assert [result.call_id for result in results] == [str(n) for n in range(number)]
        assert port.most <= AT_ONCE
        assert port.calls == min(number, MOST_CALLS)


async def test_calls_beyond_the_most_are_refused_and_the_model_is_told() -> None:
    _, results = await results_of(MOST_CALLS + 2)
    assert [result.ok for result in results[-3:]] == [True, False, False]
    assert results[-1].error == "too_many_calls"
    assert "not made" in results[-1].content
