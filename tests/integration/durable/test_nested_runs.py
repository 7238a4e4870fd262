"""Runs nested in an accepted one are on disk as it is: read from any process, resumed, ended once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.durable.base import RunQuery, RunRow
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.runtime.runs import Decision
from astromesh.telemetry.events import TERMINAL_EVENTS
from astromesh.testing import RecordingSink, RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import CallerContext, CompletionRequest, Event, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write

ME = Viewer("default", "anonymous")
PATIENCE = 30.0
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CLERK = {"name": "clerk", "type": "agent", "agent": "clerk", "effect": "read"}
ASKS_CLERK = [ToolCall("call_1", "clerk", '{"query": "Well?"}')]
LOOKS_UP = [ToolCall("call_2", "lookup", '{"query": "x"}')]


@pytest.fixture(params=("sqlite", "postgres"))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """`outer` asks `clerk`, who asks a person before looking up."""
    if request.param == "postgres":
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        storage = {"url": request.getfixturevalue("postgres_database")}
        (tmp_path / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": storage}}))
    memory = {"conversational": {"backend": request.param}}
    lookup = {"name": "lookup", "type": "lookup", "effect": "read", "approval": "required"}
    return write(tmp_path, manifest("outer", tools=[CLERK]), manifest("clerk", tools=[lookup], memory=memory))


@asynccontextmanager
async def process(folder: Path, *script: Any) -> AsyncIterator[AgentRuntime]:
    """A process; without a script it reads, and takes no run of another one."""
    plugins = {
        "tools": {"lookup": plugin_of(RecordingTool("lookup", lambda query: "found", parameters=QUERY))},
    }
    runtime = runtime_of(folder, ScriptedProvider(*script), plugins=plugins)
    runtime.durable.executes = bool(script)
    await runtime.bootstrap()
    await runtime.durable.start()
    try:
        yield runtime
    finally:
        await runtime.close(grace=0.0)


async def accepted(runtime: AgentRuntime) -> RunRow:
    return await runtime.runner.accept(runtime.agent("outer"), RunRequest("Hello", "s-1"))


async def rests(runtime: AgentRuntime, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            run = await runtime.runs.get(run_id, ME)
            if run["status"] not in ("queued", "running"):
                return run
            await asyncio.sleep(0.01)


async def clerks_run(runtime: AgentRuntime) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await runtime.runs.list(RunQuery(*ME, agent="clerk"))).runs
            if found:
                assert len(found) == 1
                return found[0]
            await asyncio.sleep(0.01)


async def heard(runtime: AgentRuntime, run_id: str, after: int = 0, until: str = "") -> list[Event]:
    """The events behind one, up to one of a type, or to the last."""
    sink = RecordingSink()
    leave = await runtime.runs.follow(run_id, ME, after, sink)
    async with asyncio.timeout(PATIENCE):
        while not any(e.type == until if until else e.type in TERMINAL_EVENTS for e in sink.events):
            await asyncio.sleep(0.01)
    if leave is not None:
        leave()
    return sink.events


class Hanging:
    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, _: CompletionRequest) -> str:
        self.begun.set()
        await asyncio.Event().wait()
        return ""


async def test_a_nested_run_is_followed_from_another_process_and_goes_on_after_a_crash(folder):
    """One log over both: no gap, nothing twice, one end; list, state and trace know it anywhere."""
    hangs = Hanging()
    async with process(folder) as reader:
        async with process(folder, ASKS_CLERK, hangs) as one:
            row = await accepted(one)
            await asyncio.wait_for(hangs.begun.wait(), PATIENCE)
            nested = (await clerks_run(reader))["run_id"]
            first = await heard(reader, nested, until="model.started")
        assert (await reader.runs.get(nested, ME))["status"] in ("queued", "running")
        async with process(folder, "The clerk says yes.", "Yes, it is.") as two:
            assert (await rests(two, row.run_id))["result"]["response"] == "Yes, it is."
        rest = await heard(reader, nested, first[-1].seq)
        run = await reader.runs.get(nested, ME)
        whole = await heard(reader, nested)
        trace = await reader.runs.trace(row.trace_id, ME)
    assert (run["status"], run["result"]["response"]) == ("completed", "The clerk says yes.")
    assert run["usage"]["input_tokens"] > 0
    assert [e.seq for e in whole] == list(range(1, len(whole) + 1)) == [e.seq for e in first + rest]
    names = [e.type for e in whole]
    for once in ("run.started", "model.started", "model.restarted", "run.completed"):
        assert names.count(once) == 1, names
    assert {e.run_id for e in whole} == {nested}
    assert trace is not None
    assert sum(span["name"] == "agent.run" for span in trace["spans"]) == 2


async def test_a_nested_run_waits_with_the_run_at_the_top_and_leaves_nothing_half(folder):
    """It has not ended while a person is asked, keeps no partial turn, and ends once."""
    async with process(folder, ASKS_CLERK, LOOKS_UP) as one:
        row = await accepted(one)
        assert (await rests(one, row.run_id))["status"] == "waiting"
    async with process(folder, "It is found.", "All done.") as two:
        nested = await clerks_run(two)
        assert nested["status"] == "waiting"
        told = [e.type for e in await two.durable.store.events(nested["run_id"])]
        assert not TERMINAL_EVENTS & set(told), told
        conversations = two.agent("clerk").memory.conversations
        assert conversations is not None
        assert await conversations.sessions("default", "clerk") == ()
        await two.runs.resume(row.run_id, ME, CallerContext(user_id="boss"), Decision("approve"))
        assert (await rests(two, row.run_id))["result"]["response"] == "All done."
        events = await heard(two, nested["run_id"])
    assert [e.type for e in events].count("run.completed") == 1
    assert events[-1].data["response"] == "It is found."
    assert [e.seq for e in events] == list(range(1, len(events) + 1))


async def test_what_is_nested_in_a_run_that_nobody_works_on_ends_with_it(folder):
    async with process(folder, ASKS_CLERK, LOOKS_UP) as one:
        row = await accepted(one)
        assert (await rests(one, row.run_id))["status"] == "waiting"
        nested = (await clerks_run(one))["run_id"]
        await one.runs.cancel(row.run_id, ME)
        assert (await one.runs.get(nested, ME))["status"] == "cancelled"
        assert [e.type for e in await heard(one, nested)][-1] == "run.cancelled"
