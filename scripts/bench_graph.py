"""How fast the graph engine is, beside a bare asyncio loop and, where it is installed, LangGraph.

    python scripts/bench_graph.py [--rounds 150] [--peers .venv/peers/bin/python]

Everything is measured in one run, in turns, with a model that answers at once; printed is the best of many
short batches, in microseconds per invocation. A machine's speed changes while it works: compare rows of one
run. The limit is a bare loop over as many nodes, an import of asyncio, or the same nodes without typed state.
"""

from __future__ import annotations

import argparse
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
BATCH = 40
FEW, MANY = 5, 25


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


async def measure(rows: dict[str, Callable[[], Awaitable[Any]]], rounds: int) -> dict[str, float]:
    """Best microseconds of each row, all rows in turns."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(rounds):
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


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--peers", default="", metavar="PYTHON", help="of requirements/peers.txt")
    return parser.parse_args()


async def main() -> None:
    args = parsed()
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
    best = await measure(rows, args.rounds)
    bare_node, bare_few = per_node(best, "bare many", "bare few"), best["bare few"]
    for name, value, limit, goal in (
        (f"{FEW} nodes that return nothing", best["few"], bare_few, "≤ 7 µs"),
        ("each further node", per_node(best, "many", "few"), bare_node, "≤ 0.8 µs"),
        (f"{FEW} nodes that return a value", best["values"], bare_few, "≤ 9 µs"),
        (f"{FEW} nodes that return a NodeResult", best["results"], bare_few, "≤ 11 µs"),
        ("a hook that does nothing, each node", (best["hook"] - best["few"]) / FEW, bare_node, "≤ 1 µs"),
        ("one PromptNode", best["prompt"], None, "≤ 7 µs"),
        ("one PromptNode with a function tool", best["prompt with a tool"], None, "≤ 12 µs"),
        (f"{FEW} inline `def` nodes", best["few def"], bare_few, "≤ 7 µs"),
        ("each further inline `def` node", per_node(best, "many def", "few def"), bare_node, "≤ 0.8 µs"),
        (f"{FEW} `def` nodes in threads", best["threads"], bare_few, ""),
    ):
        show(Figure("graph", name, value, "µs", limit, goal))
    if args.peers:
        name = f"LangGraph: {FEW} nodes that return nothing"
        show(Figure("graph", name, langgraph(args.peers), "µs", bare_few))
    typed_name = f"typed state: {FEW} nodes that change a field each, beside the same untyped"
    show(Figure("graph", typed_name, best["typed"], "µs", best["values"], "ratio ≤ 1.2"))
    one_each, three_each = (
        (best["typed"] - best["values"]) / FEW,
        (best["typed, three"] - best["three values"]) / FEW / 3,
    )
    show(
        Figure("graph", "typed state: each changed field, one a node", one_each, "µs", bare_node, "≤ 0.5 µs")
    )
    show(
        Figure(
            "graph", "typed state: each changed field, three a node", three_each, "µs", bare_node, "≤ 0.5 µs"
        )
    )
    imported = import_ms("astromesh.graph")
    show(Figure("graph", "import of astromesh.graph", imported, "ms", import_ms("asyncio"), "≤ 150 ms"))


def per_node(best: dict[str, float], many: str, few: str) -> float:
    return (best[many] - best[few]) / (MANY - FEW)


if __name__ == "__main__":
    asyncio.run(main())
