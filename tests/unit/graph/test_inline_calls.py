"""What holds the event loop is named in a warning."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from astromesh.graph import (
    FanOutNode,
    FunctionNode,
    GraphState,
    GuardNode,
    LoopNode,
    PromptGraph,
    PromptGraphEngine,
    RouterNode,
    TransformNode,
    node,
)
from astromesh.telemetry.watchdog import TICK_SECONDS, Watchdog

#: Seconds, more than a function may hold the loop.
LONG = 0.12


def slow(value: Any) -> Any:
    time.sleep(LONG)
    return True


def slow_items(state: Any) -> list[Any]:
    return [slow(state)]


def end(name: str = "end", **keywords: Any) -> FunctionNode:
    return FunctionNode(name, str, inline=True, **keywords)


def alone(node: Any) -> PromptGraph:
    return PromptGraph(nodes=[node])


GRAPHS: dict[str, Callable[[], PromptGraph]] = {
    "inline function": lambda: alone(FunctionNode("f", slow, inline=True)),
    "inline function of two": lambda: alone(
        FunctionNode("f", lambda state, config: slow(state), inline=True)
    ),
    "transform": lambda: alone(TransformNode("t", slow)),
    "preprocessor": lambda: alone(end(preprocessor=slow)),
    "postprocessor": lambda: alone(end(postprocessor=slow)),
    "condition": lambda: PromptGraph(nodes=[end("a"), end()]).when("a", "end", slow),
    "until": lambda: alone(LoopNode("l", end(), slow)),
    "guard": lambda: alone(GuardNode("g", guards=[slow])),
    "guards": lambda: alone(end(guards=[slow])),
    "choice": lambda: PromptGraph(nodes=[RouterNode("r", routes=["true"], choose=slow), end("true")]),
    "items": lambda: alone(FanOutNode("f", end(), slow_items)),
}


def _call(function: Any, state: Any) -> Any:
    return function(state)


class Hook:
    def slow_post_node(self, node, result, state):
        slow(state)

    post_node = slow_post_node


@pytest.mark.parametrize("kind", [*GRAPHS, "hook"])
async def test_a_function_that_holds_the_loop_is_named(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """With what it is, its name and how long."""
    graph, hooks = (GRAPHS[kind](), ()) if kind in GRAPHS else (alone(end()), [Hook()])
    with caplog.at_level(logging.WARNING, "astromesh.graph"):
        await PromptGraphEngine(graph, hooks=hooks).ainvoke("q")
    (line,) = [record.getMessage() for record in caplog.records if "held the event loop" in record.message]
    assert "slow" in line or "lambda" in line
    assert __name__ in line
    assert " s, and nothing else ran" in line


async def test_threads_and_quick_functions_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    """A plain function may block. An inline function that returns an awaitable does not hold the loop."""

    async def later(state: Any) -> None:
        await asyncio.sleep(LONG)

    nodes = [FunctionNode("thread", slow), end(), FunctionNode("later", later)]
    nodes.append(FunctionNode("awaited", partial(_call, later), inline=True))
    graph = PromptGraph(nodes=nodes).sequential(*(node.name for node in nodes))
    with caplog.at_level(logging.WARNING, "astromesh.graph"):
        assert (await PromptGraphEngine(graph).ainvoke("q")).ok
    assert [record for record in caplog.records if "held the event loop" in record.message] == []


@pytest.mark.parametrize("watched", [False, True])
def test_an_async_function_that_holds_the_loop_of_a_program_is_named(
    caplog: pytest.LogCaptureFixture, watched: bool
) -> None:
    """In `asyncio.run`, without a server. Where a server watches its loop, that alone names it."""

    @node("blocks")
    async def blocks(state: GraphState) -> None:
        await asyncio.sleep(2 * TICK_SECONDS)
        time.sleep(0.4)
        await asyncio.sleep(4 * TICK_SECONDS)

    async def program() -> None:
        watchdog = Watchdog()
        if watched:
            watchdog.start()
        for _ in range(20):  # the thread that looks may be late on a busy machine
            await PromptGraphEngine(PromptGraph(nodes=[blocks])).ainvoke("q")
            if watched or named():
                break
        watchdog.stop()

    def named() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == "astromesh.graph"]
        return [line for line in found if line.startswith("The event loop was held")]

    asyncio.run(program())
    assert any(" blocks" in line for line in named()) is not watched
