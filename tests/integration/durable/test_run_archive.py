"""What stays of the runs of a process: rows, usage and traces, over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.durable.base import RunQuery
from astromesh.errors import ProviderTimeout, RunNotFound
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import CallerContext, ToolCall, Usage
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.otlp_collector import collecting

RUN, BODY = "/v1/agents/helper/run", {"query": "What is a secret?", "session_id": "s"}
LOOK = ToolCall("c1", "lookup", '{"query": "private words"}')
TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]


@pytest.fixture(params=("sqlite", "postgres"))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write(tmp_path, manifest("helper", tools=TOOLS))
    if request.param == "postgres":
        told(tmp_path, storage={"url": request.getfixturevalue("postgres_database")})
    return tmp_path


def told(folder: Path, **spec: Any) -> None:
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
    (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))


def runtime(folder: Path, *script: Any) -> AgentRuntime:
    return runtime_of(folder, ScriptedProvider(*script))


async def test_runs_usage_and_traces_are_there_after_a_restart(folder: Path) -> None:
    script = (Reply("", [LOOK], usage=Usage(10, 1)), Reply("It is one.", usage=Usage(20, 2)))
    async with client_of(runtime(folder, *script)) as client:
        done = (await client.post(RUN, json=BODY)).json()
        before = (await client.get(f"/v1/traces/{done['metadata']['trace_id']}")).json()
    async with client_of(runtime(folder)) as client:
        for _ in range(1000):
            state = await client.get(f"/v1/runs/{done['run_id']}")
            if state.status_code == 200:
                break
            await asyncio.sleep(0.05)  # the store is opened beside the start
        after = (await client.get(f"/v1/traces/{done['metadata']['trace_id']}")).json()
        listed = (await client.get("/v1/runs", params={"session": "s"})).json()
        traces = (await client.get("/v1/traces", params={"agent": "helper"})).json()["traces"]
        events = await client.get(f"/v1/runs/{done['run_id']}/events")
    assert (state.json()["status"], state.json()["result"]) == ("completed", done)
    assert [span["name"] for span in after["spans"]] == [span["name"] for span in before["spans"]]
    assert "llm.complete" in str(after) and "private words" not in str(after)
    assert [run["run_id"] for run in listed["runs"]] == [done["run_id"]]
    assert (listed["usage"]["input_tokens"], listed["usage"]["output_tokens"]) == (30, 3)
    assert [line["run_id"] for line in traces] == [done["run_id"]]
    assert events.status_code in (404, 409, 410)


async def test_traces_are_found_by_agent_session_and_status_before_and_after_a_restart(folder: Path) -> None:
    """Over runs of this process and over those on disk alike; what is no filter is said to be none."""
    write(folder, manifest("other"))
    asked = ({"agent": "other"}, {"session": "t"}, {"status": "failed"}, {"status": "failed", "session": "t"})
    found = []
    for script in (("one", "two", ProviderTimeout("slow")), ()):
        async with client_of(first := runtime(folder, *script)) as client:
            await first.durable.open()
            if script:
                await client.post(RUN, json=BODY)
                await client.post("/v1/agents/other/run", json={**BODY, "session_id": "t"})
                await client.post(RUN, json=BODY)
            answers = [(await client.get("/v1/traces", params=params)).json()["traces"] for params in asked]
            found.append([[line["run_id"] for line in lines] for lines in answers])
            assert len((await client.get("/v1/traces", params={"limit": 2})).json()["traces"]) == 2
            wrong = await client.get("/v1/traces", params={"status": "lost"})
            assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_input")
    assert list(map(len, found[0])) == [1, 1, 1, 0]
    assert found[0][0] == found[0][1] != found[0][2]
    assert found[1] == found[0]


async def test_nobody_sees_the_kept_runs_of_others_and_erasing_takes_them(folder: Path) -> None:
    async with runtime(folder, "a", "b") as first:
        ann, bob = CallerContext("ann", "acme"), CallerContext("bob", "acme")
        mine = await first.run("helper", "q", "s", caller=ann)
        await first.run("helper", "q", "t", caller=bob)
    async with runtime(folder) as second:
        await second.durable.open()
        runs = (await second.runs.list(RunQuery("acme", "ann"))).runs
        assert [run["run_id"] for run in runs] == [mine.run_id]
        strangers = (Viewer("acme", "bob"), Viewer("other", None))
        # together: each is told after the moment in which another process may write a row
        found = await asyncio.gather(
            *(second.runs.get(mine.run_id, stranger) for stranger in strangers), return_exceptions=True
        )
        assert [type(one) for one in found] == [RunNotFound, RunNotFound]
        for stranger in strangers:
            assert await second.runs.trace(mine.metadata["trace_id"], stranger) is None
        for erase in second.state.erasers:
            await erase("acme", "ann")
        with pytest.raises(RunNotFound):
            await second.runs.get(mine.run_id, Viewer("acme", "ann"))
        assert len((await second.runs.list(RunQuery("acme", None))).runs) == 1


PRIVATE = {"query": "I am ann@example.org, what now?", "session_id": "s"}
REDACTING = {"input": [{"type": "pii_detection", "action": "redact"}], "output": [{"type": "pii_detection"}]}


@pytest.mark.parametrize("capture", [True, False])
async def test_traces_hold_query_and_answer_only_when_asked(tmp_path: Path, capture: bool) -> None:
    """In the store, after a restart and exported: as the guardrails left them, never what they took out."""
    write(tmp_path, manifest("helper", guardrails=REDACTING))
    with collecting() as collector:
        told(tmp_path, telemetry={"otlp_endpoint": collector.url, "capture_content": capture})
        async with client_of(runtime(tmp_path, "Write to bob@example.org.")) as client:
            done = (await client.post(RUN, json=PRIVATE)).json()
            where = f"/v1/traces/{done['metadata']['trace_id']}"
            before = (await client.get(where)).text
        async with client_of(runtime(tmp_path)) as client:
            after = (await client.get(where)).text
            for _ in range(1000):
                if "I am" in after or not capture:
                    break
                await asyncio.sleep(0.05)  # the store is opened beside the start
                after = (await client.get(where)).text
    exported = b"".join(collector.bodies).decode(errors="replace")
    assert ("gen_ai.input.messages" in exported) is capture
    assert ("gen_ai.output.messages" in exported) is capture
    for held in (before, after, exported):
        assert ("I am [EMAIL], what now?" in held) is capture
        assert ("Write to [EMAIL]." in held) is capture
        assert "@example.org" not in held


async def test_a_collector_that_is_away_harms_no_run(tmp_path: Path) -> None:
    write(tmp_path, manifest("helper"))
    told(tmp_path, telemetry={"otlp_endpoint": "http://127.0.0.1:1"})
    async with client_of(runtime(tmp_path, "one", "two")) as client:
        answers = [(await client.post(RUN, json=BODY)).status_code for _ in range(2)]
    assert answers == [200, 200]


async def test_a_process_that_ends_after_its_first_run_leaves_nothing_running(folder: Path) -> None:
    """The archive opens the store as the last thing: what expires runs does not start any more."""
    process = runtime(folder, "It is one.")
    await process.bootstrap()
    before = asyncio.all_tasks()
    await process.run("helper", "What?", "s")
    await process.close(grace=0.0)
    assert asyncio.all_tasks() <= before
