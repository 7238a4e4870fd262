"""How fast the graph engine is, beside a bare asyncio loop and, where it is installed, LangGraph.

    python scripts/bench_graph.py [--peers .venv/peers/bin/python]

Everything is measured in one run, in turns, with a model that answers at once; printed is the best of many
short batches, in microseconds per invocation. A machine's speed changes while it works: compare rows of one
run. The ratio is how many nodes of the bare loop a row costs, or how many imports of asyncio; the goals
were set where such a node costs 0.45 µs, so that they stand there in the same measure.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict

from figures import Figure, show

from astromesh.graph import FunctionNode, NodeResult, PromptGraph, PromptGraphEngine, PromptNode
from astromesh.types import CompletionRequest, CompletionResult

PEER = Path(__file__).parent / "beside" / "langgraph_nodes.py"
ROUNDS, BATCH = 150, 40
FEW, MANY = 5, 25
#: microseconds of a node of the bare loop where the goals were set
GOALS_NODE = 0.45


class Instant:
    """A model that answers at once."""

    _answer = CompletionResult("done")

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        return self._answer

    async def stream(self, request: CompletionRequest) -> Any:
        yield self._answer


async def trivial(state: Any) -> None:
    """What a node does here: nothing."""


def trivial_def(state: Any) -> None:
    """The same as a plain function."""


class Fields(TypedDict):
    """A typed state."""

    title: str
    score: int
    done: bool


class NoHook:
    """A hook that does nothing."""

    def post_node(self, node: Any, result: Any, state: Any) -> None: ...


async def one_value(state: Any) -> Any:
    """What a node of a typed graph returns: a changed field."""
    return {"score": 1}


async def three_values(state: Any) -> Any:
    """The same with all fields."""
    return {"title": "a", "score": 1, "done": True}


async def a_result(state: Any) -> Any:
    """The same as a result."""
    return NodeResult(output="a")


def look_up(word: str) -> str:
    """A function tool: looks a word up."""
    return word


async def bare(nodes: int) -> tuple[list[Any], list[float]]:
    """The least that a loop over nodes can do: results and timings."""
    results, timings = [], []
    for body in [trivial] * nodes:
        started = perf_counter()
        results.append(await body(None))
        timings.append(perf_counter() - started)
    return results, timings


def chain(
    nodes: int,
    body: Callable[[Any], Any] = trivial,
    *,
    inline: bool = False,
    state: type | None = None,
    hooks: Sequence[Any] = (),
) -> PromptGraphEngine:
    """An engine with so many function nodes in a row."""
    names = [f"n{i}" for i in range(nodes)]
    functions = [FunctionNode(name, body, inline=inline) for name in names]
    graph: PromptGraph = PromptGraph("chain", nodes=functions, state=state)
    return PromptGraphEngine(graph.sequential(*names), hooks=hooks)


def prompt(*tools: Any) -> PromptGraphEngine:
    """An engine with one PromptNode."""
    node = PromptNode("ask", instructions="Help.", tools=tools)
    return PromptGraphEngine(PromptGraph("ask", nodes=[node]), Instant())  # type: ignore[arg-type]


async def measure(rows: dict[str, Callable[[], Awaitable[Any]]]) -> dict[str, float]:
    """Best microseconds of each row, all rows in turns."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(ROUNDS):
        for name, run in rows.items():
            started = perf_counter()
            for _ in range(BATCH):
                await run()
            best[name] = min(best[name], (perf_counter() - started) / BATCH * 1e6)
    return best


def langgraph(python: str) -> float:
    """Microseconds of an invocation there, in a process of its own."""
    return float(subprocess.check_output([python, str(PEER)], text=True))


def import_ms(module: str, tries: int = 7) -> float:
    """Milliseconds to import a module in a fresh interpreter, the best of several."""
    code = f"from time import perf_counter as t; s=t(); import {module}; print((t()-s)*1000)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(tries))


async def main() -> None:
    few, many, ask, with_tool = chain(FEW), chain(MANY), prompt(), prompt(look_up)
    of_value, of_values, of_result = chain(FEW, one_value), chain(FEW, three_values), chain(FEW, a_result)
    typed, typed_all = chain(FEW, one_value, state=Fields), chain(FEW, three_values, state=Fields)
    hooked = chain(FEW, hooks=[NoHook()])
    few_def, many_def = chain(FEW, trivial_def, inline=True), chain(MANY, trivial_def, inline=True)
    threads = chain(FEW, trivial_def)
    rows: dict[str, Callable[[], Awaitable[Any]]] = {
        "bare few": lambda: bare(FEW),
        "bare many": lambda: bare(MANY),
        "few": lambda: few.ainvoke("x"),
        "many": lambda: many.ainvoke("x"),
        "few def": lambda: few_def.ainvoke("x"),
        "many def": lambda: many_def.ainvoke("x"),
        "threads": lambda: threads.ainvoke("x"),
        "prompt": lambda: ask.ainvoke("x"),
        "prompt with a tool": lambda: with_tool.ainvoke("x"),
        "values": lambda: of_value.ainvoke("x"),
        "three values": lambda: of_values.ainvoke("x"),
        "results": lambda: of_result.ainvoke("x"),
        "typed": lambda: typed.ainvoke("x"),
        "typed, three": lambda: typed_all.ainvoke("x"),
        "hook": lambda: hooked.ainvoke("x"),
    }
    best = await measure(rows)
    per_node = (best["many"] - best["few"]) / (MANY - FEW)
    per_def = (best["many def"] - best["few def"]) / (MANY - FEW)
    bare_node = (best["bare many"] - best["bare few"]) / (MANY - FEW)
    if len(sys.argv) > 2 and sys.argv[1] == "--peers":
        show(Figure("graph", f"LangGraph, {FEW} function nodes", langgraph(sys.argv[2]), "µs", bare_node))
    loaded, asyncio_loaded = import_ms("astromesh.graph"), import_ms("asyncio")
    table = [
        (f"bare loop, {FEW} nodes", best["bare few"], "µs", bare_node, None),
        ("bare loop, each further node", bare_node, "µs", bare_node, None),
        (f"astromesh.graph, {FEW} function nodes", best["few"], "µs", bare_node, 12),
        ("astromesh.graph, each further node", per_node, "µs", bare_node, 2),
        (f"astromesh.graph, {FEW} inline `def` nodes", best["few def"], "µs", bare_node, 12),
        ("astromesh.graph, each further inline `def` node", per_def, "µs", bare_node, 2),
        (f"astromesh.graph, {FEW} `def` nodes in threads", best["threads"], "µs", bare_node, None),
        (f"astromesh.graph, {FEW} nodes that return a value", best["values"], "µs", bare_node, 9),
        (f"astromesh.graph, {FEW} nodes that return a NodeResult", best["results"], "µs", bare_node, 11),
        ("astromesh.graph, a no-op hook, each node", (best["hook"] - best["few"]) / FEW, "µs", bare_node, 1),
        ("astromesh.graph, one PromptNode", best["prompt"], "µs", bare_node, 12),
        (
            "astromesh.graph, one PromptNode with a function tool",
            best["prompt with a tool"],
            "µs",
            bare_node,
            12,
        ),
        (f"typed state, {FEW} nodes, one changed field each", best["typed"], "µs", best["values"], None),
        (
            "typed state, each changed field, one a node",
            (best["typed"] - best["values"]) / FEW,
            "µs",
            bare_node,
            0.5,
        ),
        ("typed state, each changed field, three a node", _a_field(best), "µs", bare_node, 0.5),
        ("import asyncio", asyncio_loaded, "ms", asyncio_loaded, None),
        ("import astromesh.graph", loaded, "ms", asyncio_loaded, 150),
    ]
    for name, value, unit, one, goal in table:
        show(Figure("graph", name, value, unit, one, goal_of(goal, unit)))


def _a_field(best: dict[str, float]) -> float:
    return (best["typed, three"] - best["three values"]) / (FEW * 3)


def goal_of(goal: float | None, unit: str) -> str:
    """The goal, and what ratio that was to a node of the bare loop where it was set."""
    if goal is None:
        return ""
    return f"≤ {goal} {unit}" + (f", {goal / GOALS_NODE:.1f}×" if unit == "µs" else "")


if __name__ == "__main__":
    asyncio.run(main())
