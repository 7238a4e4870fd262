"""R6: a cancel is honest, from any process, over the whole tree of a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.durable.base import RunQuery
from astromesh.errors import DeadlineExceeded, Interrupted, RunNotFound
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer
from astromesh.telemetry import ids
from astromesh.testing import RecordingSink, RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import CallerContext, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write

ME, ANN, BOB = (Viewer("default", name) for name in ("anonymous", "ann", "bob"))
PATIENCE = 30.0
ASK = '{"query": "?"}'


@pytest.fixture(params=("sqlite", "postgres"))
def storage(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else ""


def folder_of(tmp_path: Path, storage: str, **spec: Any) -> Path:
    memory = {"conversational": {"backend": "postgres" if storage else "sqlite"}}
    folder = write(tmp_path, manifest(memory=memory, **spec))
    if storage:
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": storage}}}))
    return folder


class Hanging:
    """A model that says that it was asked, and nothing else."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __call__(self, request: Any) -> str:
        self.asked.set()
        await asyncio.Event().wait()
        return ""


async def only_run(runtime: AgentRuntime, viewer: Viewer = ME) -> str:
    return str((await runtime.runs.list(RunQuery(*viewer))).runs[0]["run_id"])


@asynccontextmanager
async def run_of_ann(
    folder: Path, storage: str
) -> AsyncIterator[tuple[asyncio.Task[RunAnswer], str, AgentRuntime]]:
    """A plain run of one process that its model holds, its id, and another process."""
    model, config = Hanging(), folder_of(folder, storage)
    ann = CallerContext(user_id="ann", tenant_id="default")
    async with (
        runtime_of(config, ScriptedProvider(model)) as one,
        runtime_of(config, ScriptedProvider()) as two,
    ):
        run = asyncio.create_task(one.run("helper", "Hello", "s-1", caller=ann))
        await asyncio.wait_for(model.asked.wait(), PATIENCE)
        yield run, await only_run(one, ANN), two


async def test_a_plain_run_is_cancelled_from_another_process(tmp_path, storage):
    """The answer says what became of it; its caller is told; nothing but the principal decides who may."""
    async with run_of_ann(tmp_path, storage) as (run, run_id, two):
        with pytest.raises(RunNotFound):
            await two.runs.cancel(run_id, BOB)
        assert not run.done()
        line = await two.runs.cancel(run_id, ANN)
        with pytest.raises(Interrupted):
            await run
        again = await two.runs.cancel(run_id, Viewer("default", None))
    assert (line["status"], line["run_id"], again["status"]) == ("cancelled", run_id, "cancelled")


async def test_a_stranger_neither_stops_nor_reads_the_cancel_of_another(tmp_path, storage):
    """Who knows the id of a run of another principal asks for its end before and after that principal."""
    async with run_of_ann(tmp_path, storage) as (run, run_id, two):
        callers = (two.runs.cancel(run_id, viewer) for viewer in (BOB, ANN, BOB, ANN))
        outcomes: list[Any] = await asyncio.gather(*callers, return_exceptions=True)
        with pytest.raises(Interrupted):
            await run
    before, line, after, again = outcomes
    assert isinstance(before, RunNotFound) and isinstance(after, RunNotFound)
    assert line["status"] == again["status"] == "cancelled"


async def test_a_run_that_nobody_has_is_not_found(tmp_path):
    """At once where its id is none, or too old for a run that goes on."""
    folder = folder_of(tmp_path, "")
    async with runtime_of(folder, ScriptedProvider("Hi")) as runtime:
        await runtime.run("helper", "Hello", "s-1")
        for run_id in ("run_x", "nonsense", "run_01J00000000000000000000000", ids.new_id("run_")):
            with pytest.raises(RunNotFound):
                await runtime.runs.cancel(run_id, ME)
        store = await runtime.durable.open()
        assert await store.cancel_requests(0.0) == ()


async def test_no_side_effect_begins_after_a_cancel_was_answered_in_the_whole_tree(tmp_path):
    """An outer run, three nested ones, and their tools: all of them end."""
    calls = [ToolCall(f"c{n}", f"ask{n}", ASK) for n in range(3)]
    running = asyncio.Semaphore(0)

    async def slow(query: str) -> str:
        running.release()
        await asyncio.Event().wait()
        return query

    tool = RecordingTool("slow", slow)
    nested = [{"name": f"ask{n}", "type": "agent", "agent": "inner"} for n in range(3)]
    folder = folder_of(tmp_path, "", tools=nested)
    write(folder, manifest("inner", tools=[{"name": "slow", "type": "slow"}]))
    provider = ScriptedProvider(
        calls, *[[ToolCall("t", "slow", ASK), ToolCall("u", "slow", ASK)]] * 3, "late"
    )
    async with runtime_of(folder, provider, plugins={"tools": {"slow": plugin_of(tool)}}) as runtime:
        run = asyncio.create_task(runtime.run("helper", "Hello", "s-1"))
        for _ in range(6):
            await asyncio.wait_for(running.acquire(), PATIENCE)
        lines = (await runtime.runs.list(RunQuery(*ME, status="running"))).runs
        outer = next(line["run_id"] for line in lines if line["agent"] == "helper")
        answered = await runtime.runs.cancel(outer, ME)
        made, said = len(tool.calls), len(provider.requests)
        left = (await runtime.runs.list(RunQuery(*ME, status="running"))).runs
        with pytest.raises(Interrupted):
            await run
    assert (answered["status"], len(lines), left) == ("cancelled", 4, [])
    assert (made, said) == (len(tool.calls), len(provider.requests)) == (6, 4)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_tool_that_cannot_be_stopped_is_reported(tmp_path, how):
    """A thread goes on: the run says so, with the tool's name, also where a nested run has called it."""
    entered, leave = threading.Event(), threading.Event()
    BLOCKING.update(entered=entered, leave=leave)
    block = {"name": "dig", "type": "internal", "function": "tests.reliability.test_cancels:dig"}
    folder = folder_of(
        tmp_path, "", tools=[{"name": "ask", "type": "agent", "agent": "inner"}],
        orchestration={"timeout_seconds": 120 if how == "cancel" else 0.5},
    )  # fmt: skip
    write(folder, manifest("inner", tools=[block]))
    provider = ScriptedProvider([ToolCall("a", "ask", ASK)], [ToolCall("b", "dig", '{"deep": 3}')])
    try:
        async with runtime_of(folder, provider) as runtime:
            heard = RecordingSink()
            run = asyncio.create_task(runtime.run("helper", "Hello", "s-1", sinks=(heard,)))
            assert await asyncio.to_thread(entered.wait, PATIENCE)
            outer = heard.events[0].run_id
            if how == "cancel":
                line = await runtime.runs.cancel(outer, ME)
                assert (line["status"], line["result"]["uncancellable"]) == ("cancelled", ["dig"])
            with pytest.raises(Interrupted if how == "cancel" else DeadlineExceeded):
                await run
            assert heard.events[-1].data["uncancellable"] == ["dig"]
    finally:
        leave.set()


BLOCKING: dict[str, threading.Event] = {}


def dig(deep: int) -> str:
    """Blocks its thread."""
    BLOCKING["entered"].set()
    BLOCKING["leave"].wait(PATIENCE)
    return f"{deep} deep"
