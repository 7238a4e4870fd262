"""What callers say about their runs: `metadata` and `tags` are kept, shown, searched and handed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect

from astromesh.errors import InvalidInput
from astromesh.runtime.records import RunRequest
from astromesh.testing import RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, served, write

RUN = "/v1/agents/helper/run"
SAID: dict[str, Any] = {"metadata": {"plan": "gold", "seats": 5}, "tags": ["beta", "eu", "beta"]}
BODY = {"query": "Hi", "session_id": "s", **SAID}
KEPT: dict[str, Any] = {"metadata": {"plan": "gold", "seats": 5}, "tags": ["beta", "eu"]}


def kept(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in KEPT}


async def ended(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not (run := (await client.get(f"/v1/runs/{run_id}")).json())["finished_at"]:
            await asyncio.sleep(0.01)
    return dict(run)


@pytest.mark.parametrize("how", ["plain", "streamed", "durable", "chat"])
async def test_they_are_kept_with_the_run_and_found_by_them(tmp_path: Path, how: str) -> None:
    write(tmp_path, manifest())
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello.", repeat=True))) as client:
        await client.post(RUN, json={"query": "Other", "session_id": "s"})
        if how == "durable":
            accepted = (await client.post("/v1/agents/helper/runs", json=BODY)).json()
            run = await ended(client, accepted["run_id"])
        elif how == "chat":
            body = {"model": "helper", "messages": [{"role": "user", "content": "Hi"}]}
            await client.post("/v1/chat/completions", json={**body, "metadata": SAID["metadata"]})
            run = (await client.get("/v1/runs")).json()["runs"][0]
        else:
            accept = {"accept": "text/event-stream"} if how == "streamed" else {}
            assert (await client.post(RUN, json=BODY, headers=accept)).status_code == 200
            run = (await client.get("/v1/runs")).json()["runs"][0]
        expected = KEPT if how != "chat" else {**KEPT, "tags": []}
        assert kept(run) == expected
        assert kept((await client.get(f"/v1/runs/{run['run_id']}")).json()) == expected
        for filters, found in (
            ({"metadata.plan": "gold"}, True),
            ({"metadata.seats": "5"}, True),
            ({"metadata.plan": "silver"}, False),
            ({"tag": "eu"}, how != "chat"),
            ({"tag": "e"}, False),
            ({"metadata.plan": "gold", "metadata.seats": "5"}, True),
            ({"metadata.plan": "gold", "metadata.seats": "6"}, False),
            ({"tag": ["eu", "none"]}, False),
        ):
            listed = (await client.get("/v1/runs", params=filters)).json()
            assert [one["run_id"] for one in listed["runs"]] == ([run["run_id"]] if found else []), filters
            assert (listed["usage"]["input_tokens"] > 0) is found
        many = await client.get("/v1/runs", params={f"metadata.{n}": "1" for n in range(17)})
        assert (many.status_code, many.json()["code"]) == (422, "invalid_input")
        for nul in ({"metadata.a": "\0"}, {"metadata.\0": "a"}, {"tag": "\0"}):
            assert (await client.get("/v1/runs", params=nul)).status_code == 422


async def test_they_are_kept_over_a_restart_and_in_the_export_of_a_principal(tmp_path: Path) -> None:
    write(tmp_path, manifest())
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello."))) as client:
        await client.post(RUN, json=BODY)
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello."))) as client:
        (run,) = (await client.get("/v1/runs?tag=eu&metadata.plan=gold")).json()["runs"]
        assert kept(run) == KEPT
        exported = (await client.get("/v1/principals/anonymous/data")).text
    runs = [json.loads(line) for line in exported.splitlines() if '"kind":"run"' in line.replace(" ", "")]
    assert [kept(run) for run in runs] == [KEPT]


async def test_a_socket_takes_them_too(tmp_path: Path) -> None:
    write(tmp_path, manifest())
    runtime = runtime_of(tmp_path, ScriptedProvider("Hello."))
    async with served(runtime) as host, connect(f"ws://{host}/v1/ws/agent/helper", open_timeout=60) as socket:
        await socket.send(json.dumps(BODY))
        while json.loads(await socket.recv())["type"] != "done":
            pass
        async with httpx.AsyncClient(base_url=f"http://{host}", timeout=60) as client:
            (run,) = (await client.get("/v1/runs")).json()["runs"]
    assert kept(run) == KEPT


async def test_events_traces_the_log_tools_and_templates_have_them(tmp_path: Path) -> None:
    tool = RecordingTool("lookup", "found", parameters={"type": "object"})
    prompt = {"system": "Plan: {{ metadata.plan | default('none') }}."}
    tools = [{"name": "lookup", "type": "lookup"}]
    write(tmp_path, manifest(prompts=prompt, tools=tools))
    provider = ScriptedProvider(ToolCall("c1", "lookup", "{}"), "Done.", "Done.")
    runtime = runtime_of(tmp_path, provider, plugins={"tools": {"lookup": plugin_of(tool)}})
    async with client_of(runtime) as client:
        with capture_logs() as log:
            answer = (await client.post(RUN, json=BODY)).json()
        events = (await client.get(f"/v1/runs/{answer['run_id']}/events")).text
        trace = (await client.get(f"/v1/traces/{answer['metadata']['trace_id']}")).json()
        await client.post(RUN, json={"query": "Hi", "session_id": "t"})
    started = json.loads(events.split("event: run.started\ndata: ")[1].split("\n")[0])
    (line,) = [entry for entry in log if entry["event"] == "run"]
    root = next(span for span in trace["spans"] if span["name"] == "agent.run")
    for holder in (started, line, root["attributes"]):
        assert kept(holder) == KEPT
    assert (dict(tool.contexts[0].metadata), tool.contexts[0].tags) == (KEPT["metadata"], ("beta", "eu"))
    assert [r.messages[0].content for r in provider.requests] == ["Plan: gold."] * 2 + ["Plan: none."]


@pytest.mark.parametrize("declared", [True, False])
async def test_metadata_never_replaces_a_variable(tmp_path: Path, declared: bool) -> None:
    prompt: dict[str, Any] = {"system": "{{ metadata }}"}
    if declared:
        prompt["variables"] = {"metadata": "ours"}
    write(tmp_path, manifest(prompts=prompt))
    provider = ScriptedProvider("Done.")
    async with client_of(runtime_of(tmp_path, provider)) as client:
        await client.post(RUN, json={**BODY, "context": {"metadata": "theirs"}})
    assert provider.requests[0].messages[0].content == ("ours" if declared else "theirs")


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"metadata": {str(n): n for n in range(33)}}, "metadata"),
        ({"metadata": {"a": "x" * 4096}}, "metadata"),
        ({"tags": [str(n) for n in range(17)]}, "tags"),
        ({"tags": ["x" * 65]}, "tags"),
        ({"tags": [""]}, "tags"),
        # PostgreSQL cannot search what holds a NUL: one such run would break the filtered lists of its tenant
        ({"tags": ["a\0"]}, "tags"),
        ({"metadata": {"a": ["\0"]}}, "metadata"),
        ({"metadata": {"\0": 1}}, "metadata"),
    ],
)
async def test_what_is_too_much_is_refused(tmp_path: Path, said: dict[str, Any], place: str) -> None:
    write(tmp_path, manifest())
    async with client_of(runtime_of(tmp_path, ScriptedProvider("Hello."))) as client:
        answer = await client.post(RUN, json={"query": "Hi", "session_id": "s", **said})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert place in answer.json()["detail"]


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"metadata": {"a": "\0"}}, "NUL"),
        ({"metadata": {"a": "x" * 4096}}, "4 KiB"),
        ({"metadata": {"a": object()}}, "JSON"),
        ({"metadata": {str(n): n for n in range(33)}}, "32 keys"),
        ({"tags": ("a\nb",)}, "one line"),
        ({"tags": ("x" * 65,)}, "64 characters"),
        ({"tags": tuple(map(str, range(17)))}, "at most 16"),
    ],
)
async def test_what_a_program_says_is_checked_as_over_http(
    tmp_path: Path, said: dict[str, Any], what: str
) -> None:
    write(tmp_path, manifest())
    async with runtime_of(tmp_path, ScriptedProvider()) as runtime:
        agent = runtime.agent("helper")
        for begin in (runtime.runner.start, runtime.runner.accept):
            with pytest.raises(InvalidInput, match=what):
                await begin(agent, RunRequest("Hi", "s", **said))
