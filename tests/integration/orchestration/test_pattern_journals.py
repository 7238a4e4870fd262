"""Durable runs of patterns: a finished node is in the journal, and a resumed run reads it from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astromesh.access.scopes import Viewer
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from tests.integration.orchestration.pattern_cases import CASES, LOOK, QUESTION, TOOLS, Case, runtime_for

ME = Viewer("default", "anonymous")
PATIENCE = 20.0
CUTS = {
    **CASES,
    "react": Case({"pattern": "react"}, [LOOK, "Tea costs 3."], "Tea costs 3.", frozenset(), 0),
}
#: differ from run to run
VARYING = ("run_id", "trace_id", "latency_ms", "attempts", "started_at", "duration_ms")
SAFE = [{**tool, "effect": "read"} for tool in TOOLS]


@asynccontextmanager
async def process(folder: Path, case: Case, script: Sequence[Any]) -> AsyncIterator[AgentRuntime]:
    spec = {"tools": SAFE} if case.spec else {}
    runtime, _ = runtime_for(folder, case, script, **spec)
    await runtime.bootstrap()
    await runtime.durable.start()
    try:
        yield runtime
    finally:
        await runtime.close(grace=0.0)


async def accepted(runtime: AgentRuntime) -> str:
    return (await runtime.runner.accept(runtime.agent("helper"), RunRequest(QUESTION, "s"))).run_id


async def ended(runtime: AgentRuntime, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while (run := await runtime.runs.get(run_id, ME))["status"] in ("queued", "running"):
            await asyncio.sleep(0.005)
    assert run["status"] == "completed", run["error"]
    return run


def reported(run: dict[str, Any]) -> dict[str, Any]:
    """The result of a run, without what differs from run to run."""
    about = {key: value for key, value in run["result"]["metadata"].items() if key not in VARYING}
    about["nodes_visited"] = {n["node"]: n["times"] for n in about["nodes_visited"]}
    return {"response": run["result"]["response"], **about}


@pytest.mark.parametrize("name", sorted(CUTS))
async def test_a_run_cut_at_any_model_call_reports_the_same(tmp_path: Path, name: str) -> None:
    """Answer, usage, tools, notes of the pattern and visits of nodes; each visit is in the journal once."""
    case = CUTS[name]

    async with process(tmp_path / "whole", case, case.script) as one:
        whole = reported(await ended(one, await accepted(one)))
    for cut in range(1, len(case.script)):
        stuck = asyncio.Event()

        async def hangs(_: Any, stuck: asyncio.Event = stuck) -> str:
            stuck.set()
            await asyncio.Event().wait()
            return ""

        folder = tmp_path / str(cut)
        async with process(folder, case, [*case.script[:cut], hangs]) as one:
            run_id = await accepted(one)
            await asyncio.wait_for(stuck.wait(), PATIENCE)
        async with process(folder, case, case.script[cut:]) as two:
            assert reported(await ended(two, run_id)) == whole, cut
            steps = await two.durable.store.steps(run_id)
            events = await two.durable.store.events(run_id)
        visits = [step.path.partition(":")[2] for step in steps if step.kind == "node"]
        assert all(step.state == "done" for step in steps if step.kind == "node")
        own = sorted(path for path in visits if "/run:" not in path)
        assert own == sorted(event.data["node"] for event in events if event.type == "node.started"), cut
