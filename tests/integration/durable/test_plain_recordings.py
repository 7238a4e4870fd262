"""Recordings of plain runs: the same steps as of a durable run, and forks of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, write
from tests.integration.durable.test_forks import LOOKUP, MEMORY, SEND, Server, asks, said


def runtime_file(folder: Path, **recording: Any) -> Path:
    spec = {"kind": "RuntimeConfig", "apiVersion": "astromesh/v1", "spec": {"recording": recording}}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(spec))
    return folder


async def plain(server: Server, query: str = "Hello", **headers: str) -> str:
    body = {"query": query, "session_id": "s"}
    answer = await server.client.post("/v1/agents/helper/run", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["run_id"])


async def test_a_plain_run_has_the_steps_of_a_durable_one(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[LOOKUP], memory=MEMORY, recording=True))
    async with Server(folder, asks("a"), "done", asks("a"), "done") as server:
        run_id = await plain(server)
        durable = await server.run()
        steps, others = await server.steps(run_id), await server.steps(durable["run_id"])
        assert [(s["step"], s["kind"], s["name"], s["path"]) for s in steps] == [
            (s["step"], s["kind"], s["name"], s["path"]) for s in others
        ]
        shown = (await server.client.get(f"/v1/runs/{run_id}/steps/4")).json()
        assert shown["input"]["messages"][-1]["content"] == "Hello"
        assert shown["output"]["tool_calls"][0]["name"] == "lookup"


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_recorded_plain_run_can_be_forked(tmp_path: Path, key: str) -> None:
    """Also one with an Idempotency-Key, whose row is there before it ends."""
    folder = write(tmp_path, manifest(tools=[SEND], recording=True))
    async with Server(folder, asks("a"), "done", "again", asks("a"), "once more") as server:
        run_id = await plain(server, **({"idempotency-key": key} if key else {}))
        fork = await server.fork(run_id, await server.step(run_id, "model", 1), {"system": "Be brief."})
        assert fork["result"]["response"] == "again"
        assert said(server.model.requests[2]) == [
            ("system", "Be brief."),
            *said(server.model.requests[1])[1:],
        ]
        assert fork["forked_from"]["run_id"] == run_id
        again = await server.fork(run_id, 1)
        assert again["result"]["response"] == "once more"
        assert len(server.tool.calls) == 1


async def test_plain_runs_are_recorded_where_the_runtime_says_so(tmp_path: Path) -> None:
    """The agent decides if it says anything."""
    folder = write(tmp_path, manifest(), manifest("silent", recording=False))
    runtime_file(folder, enabled=True)
    async with Server(folder, "one", "two") as server:
        assert await server.steps(await plain(server))
        body = {"query": "Hello", "session_id": "s"}
        answer = await server.client.post("/v1/agents/silent/run", json=body)
        refused = await server.client.get(f"/v1/runs/{answer.json()['run_id']}/steps")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_recorded")
    assert "`recording: true`" in refused.json()["detail"]


async def test_a_run_beyond_the_cap_has_no_recording(tmp_path: Path) -> None:
    folder = runtime_file(write(tmp_path, manifest()), enabled=True, max_bytes=2_000)
    async with Server(folder, "short", "long " * 1_000) as server:
        short, long = await plain(server), await plain(server)
        assert await server.steps(short)
        assert (await server.client.get(f"/v1/runs/{long}/steps")).status_code == 409
        assert (await server.client.get(f"/v1/runs/{long}")).json()["status"] == "completed"


async def test_recordings_are_deleted_by_hand_and_by_their_age_and_the_run_stays(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(recording=True))
    async with Server(folder, "one", "two", "three") as server:
        first, second = await plain(server), (await server.run())["run_id"]
        for run_id in (first, second):
            assert (await server.client.delete(f"/v1/runs/{run_id}/steps")).status_code == 204
            assert (await server.client.get(f"/v1/runs/{run_id}/steps")).status_code == 409
            assert (await server.client.get(f"/v1/runs/{run_id}")).json()["result"]["response"]
        third = await plain(server)
        assert await server.steps(third)
        store, now = server.runtime.durable.store, server.runtime.clock.now()
        assert await store.expire_recordings(now - 60) == 0
        assert await store.expire_recordings(now + 60) >= 5
        assert (await server.client.get(f"/v1/runs/{third}/steps")).status_code == 409
        assert (await server.client.get(f"/v1/runs/{third}")).json()["result"]["response"] == "three"


async def test_recordings_go_with_the_data_of_their_principal(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(recording=True))
    async with Server(folder, "my secret answer") as server:
        run_id = await plain(server, "my secret question")
        assert await server.steps(run_id)
        await server.runtime.runs.erase_owner("default", "anonymous")
        assert await server.runtime.durable.store.steps(run_id) == ()


async def test_what_rules_hide_is_in_no_recording(tmp_path: Path) -> None:
    rule = {"type": "pii_detection", "action": "redact"}
    agent = manifest(tools=[LOOKUP], guardrails={"input": [rule], "output": [rule]}, recording=True)
    call = ToolCall("c1", "lookup", '{"query": "bob@example.com"}')
    async with Server(write(tmp_path, agent), call, "Ask bob@example.com") as server:
        run_id = await plain(server, "Who is ann@example.com?")
        await server.runtime.runs.archive.flush()
        store = server.runtime.durable.store
        row, kept = await store.get(run_id), await store.steps(run_id)
    assert row is not None and row.request["query"] == "Who is [EMAIL]?"
    assert len(kept) > 5
    assert "@example.com" not in json.dumps([row.request, [step._asdict() for step in kept]])


async def test_recording_changes_nothing_of_a_run(tmp_path: Path) -> None:
    """The same events, whether it ends or fails."""

    async def events(recording: bool) -> list[Any]:
        folder = write(
            tmp_path / str(recording), manifest(tools=[LOOKUP], memory=MEMORY, recording=recording)
        )

        def fails(_: CompletionRequest) -> str:
            raise RuntimeError("gone")

        async with Server(folder, asks("a"), "done", fails) as server:
            found: list[Any] = []
            for _ in "ab":
                body = {"query": "Hello", "session_id": "s"}
                headers = {"accept": "text/event-stream"}
                answer = await server.client.post("/v1/agents/helper/run", json=body, headers=headers)
                found += [line for line in answer.text.splitlines() if line.startswith("event:")]
            return found

    assert await events(True) == await events(False)


NODES = """
def first(state):
    state.context["lock"] = object()
    return "rough"

def second(state):
    return f"{state.context['first_output']} {type(state.context['lock']).__name__}"
"""


async def test_a_value_without_a_json_form_is_no_error_of_a_recorded_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node cannot be repeated: a fork behind it says so."""
    (tmp_path / "recorded_nodes.py").write_text(NODES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "recorded_nodes", raising=False)
    nodes = [
        {"name": name, "kind": "function", "function": f"recorded_nodes:{name}", "inline": True, **more}
        for name, more in (("first", {}), ("second", {"is_terminal": True}))
    ]
    spec = {"name": "plan", "entry": "first", "nodes": nodes, "edges": [{"from": "first", "to": "second"}]}
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "plan"}, "spec": spec}
    write(tmp_path, manifest(orchestration={"pattern": "graph", "graph": "plan"}, recording=True))
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "plan.graph.yaml").write_text(yaml.safe_dump(head))
    async with Server(tmp_path) as server:
        run_id = await plain(server)
        run = (await server.client.get(f"/v1/runs/{run_id}")).json()
        assert run["result"]["response"] == "rough object"
        refused = await server.post(run_id, await server.step(run_id, "node", 1))
        assert (refused.status_code, refused.json()["code"]) == (409, "not_recorded")


async def test_others_do_not_delete_steps(tmp_path: Path) -> None:
    async with Server(write(tmp_path, manifest(recording=True)), "one") as server:
        run_id = await plain(server)
        with pytest.raises(Exception, match="There is no run"):
            await server.runtime.time_travel.delete_recording(run_id, Viewer("default", "somebody"))
        assert await server.steps(run_id)
