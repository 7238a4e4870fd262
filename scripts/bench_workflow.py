"""How fast workflows run: deterministic stages, a wide split with its merge, and the cost per stage by size.

    python scripts/bench_workflow.py

Everything in one process, without persistence but for the durable Tasks, with the garbage collector as a
server sets it. Beside each figure stands what a bare asyncio loop needs for as many awaited calls, measured
in the same run: a machine's speed changes while it works.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
from figures import Figure, show

from astromesh.access.scopes import Viewer
from astromesh.cli.startup import freeze_memory
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import TaskRequest
from astromesh.workflow import Engine

ROUNDS = 5
OPS = """
async def echo(input, context, tools):
    return input

def blocking(input, context, tools):
    return input

async def items(input, context, tools):
    return {"subtask_inputs": list(range(input))}

async def count(input, context, tools):
    return {"inputs": len(input["inputs"])}
"""


def node(id: str, role: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "kind": "deterministic", "role": role, "context": "none", **more}


def chain(length: int, op: str | None) -> dict[str, Any]:
    """A start, so many linear stages, an exit."""
    names = ["s", *(f"n{i}" for i in range(length)), "e"]
    more = {"op": op} if op else {}
    nodes = [
        node("s", "start", default=True),
        *(node(n, "linear", **more) for n in names[1:-1]),
        node("e", "exit"),
    ]
    edges = [{"from": a, "to": b} for a, b in pairwise(names)]
    return {"version": 1, "workflow": "bench", "nodes": nodes, "edges": edges}


def wide(most: int) -> dict[str, Any]:
    """A split into many subtasks of one stage each, and their merge."""
    split = {"mode": "items", "max_subtasks": most}
    nodes = [
        node("s", "start", default=True),
        node("p", "split", op="ops:items", split=split),
        node("x", "linear", op="ops:echo"),
        node("m", "merge", op="ops:count", merge={"strategy": "op"}),
        node("e", "exit"),
    ]
    pairs = [("s", "p"), ("p", "x"), ("p", "x#2"), ("x", "m"), ("x#2", "m"), ("m", "e")]
    edges = [{"from": a, "to": b} for a, b in pairs]
    task = {"max_live_tasks": most + 2}
    return {"version": 1, "workflow": "bench", "nodes": nodes, "edges": edges, "task": task}


def engine_of(folder: Path, workflow: dict[str, Any]) -> Engine:
    folder.mkdir(exist_ok=True)
    (folder / "ops.py").write_text(OPS)
    (folder / "workflow.yaml").write_bytes(orjson.dumps(workflow))
    return Engine.load(folder, env={})


async def bare(calls: int) -> float:
    """Seconds for as many awaited calls."""

    async def echo(value: Any) -> Any:
        return value

    started = perf_counter()
    for _ in range(calls):
        await echo(None)
    return perf_counter() - started


async def best(work: Callable[[], Awaitable[Any]], rounds: int = ROUNDS) -> float:
    """The shortest of some rounds in seconds."""
    times = []
    for _ in range(rounds):
        started = perf_counter()
        await work()
        times.append(perf_counter() - started)
    return min(times)


async def stages(folder: Path) -> None:
    for name, op, goal in (
        ("identity", None, ""),
        ("async operation", "ops:echo", ""),
        ("operation in a thread", "ops:blocking", "≤ 60 µs"),
    ):
        length = 500
        async with engine_of(folder, chain(length, op)) as engine:
            await engine.run({"n": 1})
            seconds = await best(lambda: engine.run({"n": 1}))
        limit = await best(partial(bare, length + 2))
        each, bare_call = seconds / (length + 2) * 1e6, limit / (length + 2) * 1e6
        show(Figure("workflow", f"a stage, {name}", each, "µs", bare_call, goal))


async def splits(folder: Path) -> None:
    """Each size beside the smallest: what a subtask costs does not grow with their number."""
    smallest = peak = 0.0
    for size in (100, 1000, 10_000):
        async with engine_of(folder, wide(size)) as engine:
            started = perf_counter()
            result = await engine.run(size)
            seconds = perf_counter() - started
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        assert result.output == {"inputs": size}, result.error
        each = seconds / size * 1e6
        smallest = smallest or each
        goal = "≤ 25 µs" if size == 10_000 else ""
        show(
            Figure(
                "workflow", f"split into {size:,}: each subtask with its merge", each, "µs", smallest, goal
            )
        )
    show(Figure("workflow", "memory of the process at its peak", peak, "MiB", None, "≤ 200 MiB"))


async def durable(place: Path) -> None:
    """Durable Tasks in SQLite: each stage is a row that is on disk before it counts."""
    length = 200
    folder = place / "config" / "workflows" / "bench"
    folder.mkdir(parents=True)
    engine_of(folder, chain(length, "ops:echo"))
    async with AgentRuntime(place / "config", data_dir=place / "data") as runtime:
        for many in (1, 4):

            async def work(tasks: int = many) -> None:
                rows = [await runtime.workflows.accept("bench", TaskRequest(1)) for _ in range(tasks)]
                for row in rows:
                    told = await runtime.workflows.tasks.ended(row.task_id, Viewer("default", None))
                    assert told["status"] == "success", told

            seconds = await best(work)
            name = f"durable stages, {many} Task{'s' if many > 1 else ''} at once"
            show(Figure("workflow", name, many * (length + 2) / seconds, "stages/s", None, "≥ 300"))


async def main() -> None:
    freeze_memory()
    with tempfile.TemporaryDirectory() as temporary:
        await stages(Path(temporary) / "chain")
        await splits(Path(temporary) / "wide")
        await durable(Path(temporary) / "durable")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
