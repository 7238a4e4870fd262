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
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from figures import Figure, show

from astromesh.graph import FunctionNode, PromptGraph, PromptGraphEngine, PromptNode
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


async def bare(nodes: int) -> tuple[list[Any], list[float]]:
    """The least that a loop over nodes can do: results and timings."""
    results, timings = [], []
    for body in [trivial] * nodes:
        started = perf_counter()
        results.append(await body(None))
        timings.append(perf_counter() - started)
    return results, timings


def chain(nodes: int, body: Callable[[Any], Any] = trivial, *, inline: bool = False) -> PromptGraphEngine:
    """An engine with so many trivial function nodes in a row."""
    names = [f"n{i}" for i in range(nodes)]
    graph = PromptGraph("chain", nodes=[FunctionNode(name, body, inline=inline) for name in names])
    return PromptGraphEngine(graph.sequential(*names))


def prompt() -> PromptGraphEngine:
    """An engine with one PromptNode."""
    return PromptGraphEngine(PromptGraph("ask", nodes=[PromptNode("ask", instructions="Help.")]), Instant())  # type: ignore[arg-type]


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
    few, many, ask = chain(FEW), chain(MANY), prompt()
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
        ("astromesh.graph, one PromptNode", best["prompt"], "µs", bare_node, 12),
        ("import asyncio", asyncio_loaded, "ms", asyncio_loaded, None),
        ("import astromesh.graph", loaded, "ms", asyncio_loaded, 150),
    ]
    for name, value, unit, one, goal in table:
        show(Figure("graph", name, value, unit, one, goal_of(goal, unit)))


def goal_of(goal: float | None, unit: str) -> str:
    """The goal, and what ratio that was to a node of the bare loop where it was set."""
    if goal is None:
        return ""
    return f"≤ {goal} {unit}" + (f", {goal / GOALS_NODE:.1f}×" if unit == "µs" else "")


if __name__ == "__main__":
    asyncio.run(main())
