"""A durable run that waits for a person is a row: nothing of it stays in the process that accepted it."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from astromesh.access.scopes import Viewer
from astromesh.durable.base import RunQuery
from astromesh.durable.step_log import StepLog
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.runs import Decision
from astromesh.runtime.segment import Segment
from astromesh.telemetry.run_log import RunLog
from astromesh.testing import RecordingSink, ScriptedProvider
from astromesh.tools.base import ClientTools
from astromesh.types import CallerContext, CompletionRequest, Event, ToolCall, ToolSpec
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

ME = Viewer("default", "anonymous")
PATIENCE = 30.0
#: what a run is made of while it runs
PARTS = (RunLog, Run, StepLog, Segment, Event, asyncio.Task)
TOOL = {
    "name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup",
    "approval": "required",
}  # fmt: skip


def says(request: CompletionRequest) -> Any:
    if request.messages[-1].role == "tool":
        return "done"
    return [ToolCall("c1", "lookup", '{"query": "x"}')]


def parts() -> Counter[str]:
    """How many objects of each part there are."""
    gc.collect()
    return Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, PARTS))


async def wait_for_people(runtime: AgentRuntime, count: int) -> list[str]:
    """Accepts runs and returns when all of them wait."""
    rows = [
        await runtime.runner.accept(runtime.agent("asks"), RunRequest("go", f"s-{n}-{count}"))
        for n in range(count)
    ]
    async with asyncio.timeout(PATIENCE):
        for row in rows:
            while (await runtime.runs.get(row.run_id, ME))["status"] != "waiting":
                await asyncio.sleep(0.01)
    return [row.run_id for row in rows]


async def test_runs_that_wait_leave_no_task_no_event_and_no_record_in_the_process(tmp_path: Path) -> None:
    """Thirty of them, and there is no more of anything than with one; a decision brings one back whole."""
    write(tmp_path, manifest("asks", tools=[TOOL]))
    provider = ScriptedProvider(says, repeat=True)
    gc.freeze()  # what there was before is not looked at
    async with runtime_of(tmp_path, provider) as runtime:
        await wait_for_people(runtime, 1)
        before = parts()
        first, *_ = await wait_for_people(runtime, 30)
        async with asyncio.timeout(PATIENCE):
            while left := parts() - before:  # what has just said that it waits is about to go
                await asyncio.sleep(0.01)
        assert left == Counter()
        await runtime.runs.resume(first, ME, CallerContext(), Decision("approve"))
        async with asyncio.timeout(PATIENCE):
            while (run := await runtime.runs.get(first, ME))["status"] != "completed":
                await asyncio.sleep(0.01)
        assert run["result"]["response"] == "done"


async def test_traces_of_durable_runs_come_from_the_store_and_are_among_the_newest(tmp_path: Path) -> None:
    """Also where as many newer lines as were asked for are in memory."""
    write(tmp_path, manifest("asks", tools=[TOOL]), manifest("plain"))
    async with runtime_of(tmp_path, ScriptedProvider(says, repeat=True)) as runtime:
        for n in range(3):
            await runtime.runner.start(runtime.agent("plain"), RunRequest("go", f"p-{n}"))
        assert len((await runtime.runs.traces(RunQuery(*ME, limit=3))).runs) == 3  # they are on disk now
        (run_id,) = await wait_for_people(runtime, 1)
        (line,) = (await runtime.runs.traces(RunQuery(*ME, limit=1))).runs
        trace = await runtime.runs.trace(line["trace_id"], ME)
    assert (line["run_id"], line["status"]) == (run_id, "waiting")
    assert trace is not None
    assert trace["spans"][0]["name"] == "agent.run"
    assert "llm.complete" in {span["name"] for span in trace["spans"]}


async def test_a_repeated_request_waits_for_a_run_that_goes_on(tmp_path: Path) -> None:
    """The wait before the decision is over."""
    decided, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(request: CompletionRequest) -> Any:
        if request.messages[-1].role == "tool":
            decided.set()
            await go_on.wait()
        return says(request)

    write(tmp_path, manifest("asks", tools=[TOOL]))
    async with client_of(runtime_of(tmp_path, ScriptedProvider(slowly, repeat=True))) as client:

        async def ask() -> httpx.Response:
            body, headers = {"query": "go", "session_id": "s"}, {"idempotency-key": "k"}
            return await client.post("/v1/agents/asks/run", json=body, headers=headers)

        waits = await ask()
        assert waits.status_code == 202
        path = f"/v1/runs/{waits.json()['run_id']}/resume"
        assert (await client.post(path, json={"decision": "approve"})).status_code == 200
        await decided.wait()
        again = asyncio.create_task(ask())
        done, _ = await asyncio.wait([again], timeout=0.5)
        assert not done
        go_on.set()
        assert (await again).json()["response"] == "done"


async def test_a_client_that_leaves_where_it_is_asked_for_a_result_may_bring_it(tmp_path: Path) -> None:
    """OpenAI's SDK for JavaScript closes the connection as soon as it has read the calls."""

    class Leaves(RecordingSink):
        def send(self, event: Event) -> None:
            super().send(event)
            if event.type == "run.waiting":
                going.cancel()

    write(tmp_path, manifest("asks"))
    tools = ClientTools((ToolSpec("lookup", "", {"type": "object"}),))
    async with runtime_of(tmp_path, ScriptedProvider(says, repeat=True)) as runtime:
        request, client = RunRequest("go", "s", client_tools=tools), Leaves()
        going = asyncio.create_task(runtime.runner.start(runtime.agent("asks"), request, sinks=(client,)))
        await asyncio.wait([going])
        run_id = client.events[0].run_id
        async with asyncio.timeout(PATIENCE):
            while (run := await runtime.runs.get(run_id, ME))["status"] == "running":
                await asyncio.sleep(0.01)
        assert run["status"] == "waiting"
        await runtime.runs.resume(run_id, ME, CallerContext(), Decision("answer", answer="x"))
        async with asyncio.timeout(PATIENCE):
            while (run := await runtime.runs.get(run_id, ME))["status"] != "completed":
                await asyncio.sleep(0.01)
    assert run["result"]["response"] == "done"


async def test_a_reader_of_a_run_that_is_erased_is_told_so(tmp_path: Path) -> None:
    """Its last event never comes: a stream of it, and who waits for its answer, would wait for ever."""
    write(tmp_path, manifest("asks", tools=[TOOL]))
    async with client_of(runtime_of(tmp_path, ScriptedProvider(says, repeat=True))) as client:
        runtime: AgentRuntime = client._transport.app.state.runtime  # type: ignore[attr-defined]
        [run_id] = await wait_for_people(runtime, 1)
        path, headers = f"/v1/runs/{run_id}/events", {"last-event-id": "1"}
        stream = asyncio.create_task(client.get(path, headers=headers))
        await asyncio.sleep(0.2)  # it has read what there is
        assert (await client.delete("/v1/principals/anonymous/data")).status_code == 200
        told = (await asyncio.wait_for(stream, PATIENCE)).text.split("\n\n")[-2]
        assert (await client.get(path)).status_code == 404
    assert "event: run.failed" in told
    assert f"The run '{run_id}' was erased." in told
