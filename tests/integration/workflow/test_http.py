"""Workflows over HTTP: run, accepted, followed, cancelled, inspected, replayed; what they leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.access.scopes import Viewer
from astromesh.api.app import create_app
from astromesh.runtime.records import TaskRequest
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import client_of, manifest, write
from tests.integration.workflow.folders import ENDED, events_of, runtime_with, sample, small, until
from tests.integration.workflow.test_sample_project import CONTRACT, lawyer

RUN, RUNS = "/v1/workflows/small/run", "/v1/workflows/small/runs"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config"


async def test_a_run_is_answered_when_it_has_ended(config: Path) -> None:
    async with client_of(runtime_with(small(config))) as client:
        answer = (await client.post(RUN, json={"input": 21, "metadata": {"from": "test"}})).json()
        kept = (await client.get(f"/v1/tasks/{answer['task_id']}")).json()
    assert (answer["workflow"], answer["status"], answer["output"], answer["error"]) == (
        "small", "success", 42, None,
    )  # fmt: skip
    metadata = answer["metadata"]
    assert metadata["path"] == ["s", "x", "e"]
    assert len(metadata["run_fingerprint"]) == 64 and len(metadata["trace_id"]) == 32
    assert metadata["usage"]["input_tokens"] == 0 and metadata["latency_ms"] >= 0
    assert metadata["request"] == {"from": "test"}
    assert (kept["status"], kept["output"], kept["metadata"]) == ("success", 42, metadata)


@pytest.mark.parametrize("route", [RUN, RUNS])
async def test_a_task_that_is_asked_for_twice_is_one(config: Path, route: str) -> None:
    """R5: ten duplicates at once, one later; another body is a conflict, another key another Task."""
    named, body = {"idempotency-key": "k-1"}, {"input": 21}
    async with client_of(runtime_with(small(config))) as client:
        many = [client.post(route, json=body, headers=named) for _ in range(10)]
        answers = [answer.json() for answer in await asyncio.gather(*many)]
        answers.append((await client.post(route, json=body, headers=named)).json())
        other = await client.post(route, json={"input": 22}, headers=named)
        more = (await client.post(route, json=body, headers={"idempotency-key": "k-2"})).json()
        listed = (await client.get("/v1/tasks")).json()["tasks"]
    assert all(answer == answers[0] for answer in answers)
    if route == RUN:
        assert {answer["output"] for answer in answers} == {42}
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    assert {task["task_id"] for task in listed} == {answers[0]["task_id"], more["task_id"]}


async def test_a_failed_task_is_200_and_a_wrong_call_is_4xx(config: Path) -> None:
    async with client_of(runtime_with(small(config, op="fail"))) as client:
        failed = await client.post(RUN, json={"input": 1})
        wrong = [
            await client.post(RUN, json={"input": 1, "start": "x"}),
            await client.post(RUN, json={"inputs": 1}),
            await client.post("/v1/workflows/smal/run", json={}),
            await client.get("/v1/tasks/task_none"),
        ]
    assert (failed.status_code, failed.json()["status"]) == (200, "failure")
    assert failed.json()["error"]["code"] == "operation_error"
    assert [(r.status_code, r.json()["code"]) for r in wrong] == [
        (422, "invalid_input"), (422, "invalid_input"), (404, "workflow_not_found"), (404, "task_not_found"),
    ]  # fmt: skip
    assert "Did you mean `small`" in wrong[2].json()["detail"]


async def test_a_broken_workflow_is_listed_and_harms_nobody(config: Path) -> None:
    small(small(config), "broken", op="nothing_there")
    async with client_of(runtime_with(config)) as client:
        listed = {w["name"]: w for w in (await client.get("/v1/workflows")).json()["workflows"]}
        broken = await client.post("/v1/workflows/broken/run", json={"input": 1})
        fine = await client.post(RUN, json={"input": 1})
    assert (listed["broken"]["status"], listed["small"]["status"]) == ("broken", "ready")
    assert "nothing_there" in listed["broken"]["errors"][0]
    assert (broken.status_code, broken.json()["code"]) == (503, "workflow_unavailable")
    assert fine.json()["output"] == 2


async def test_an_accepted_task_is_on_disk_and_ends_by_itself(config: Path) -> None:
    runtime = runtime_with(small(config))
    async with client_of(runtime) as client:
        accepted = await client.post(RUNS, json={"input": 21})
        body = accepted.json()
        row = await (await runtime.workflows.store()).get(body["task_id"])
        task = await until(client, body["task_id"], *ENDED)
    assert accepted.status_code == 202
    assert row is not None and row.durable
    assert body["links"]["self"] == f"/v1/tasks/{body['task_id']}"
    assert (task["status"], task["output"], task["durable"]) == ("success", 42, True)


async def test_events_are_those_of_the_records_and_go_on_behind_an_id(config: Path) -> None:
    """Whoever follows later, or comes back with Last-Event-ID, sees the same events and numbers."""
    async with client_of(runtime_with(sample(config))) as client:
        answer = (
            await client.post("/v1/workflows/contract_review/run", json={"input": {"text": CONTRACT}})
        ).json()
        path = f"/v1/tasks/{answer['task_id']}/events"
        events = events_of((await client.get(path)).text)
        rest = events_of((await client.get(path, headers={"last-event-id": "10"})).text)
        complete = await client.get(path, headers={"last-event-id": str(len(events))})
        beyond = await client.get(path, headers={"last-event-id": str(len(events) + 1)})
        trace = (await client.get(f"/v1/tasks/{answer['task_id']}/trace")).json()
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    assert rest == events[10:]
    assert (complete.status_code, complete.content) == (204, b"")
    assert (beyond.status_code, beyond.json()["code"]) == (422, "invalid_input")
    kinds = {kind for _, kind, _ in events}
    assert kinds == {
        "task.started", "stage.started", "stage.finished", "decision.taken", "task.split", "task.cloned",
        "merge.fired", "task.finished",
    }  # fmt: skip
    assert events[-1][1] == "task.finished" and events[-1][2]["task"] == answer["task_id"]
    told = [(kind, data["task"], data.get("stage")) for _, kind, data in events]
    split = next(n for n, (kind, *_) in enumerate(told) if kind == "task.split")
    children = [n for n, (kind, _, stage) in enumerate(told) if (kind, stage) == ("stage.started", "review")]
    assert children and split < min(children), "a fork is told before the stages of its children"
    finished = [data["stage"] for _, kind, data in events if kind == "stage.finished"]
    assert finished == answer["metadata"]["path"] == [e["stage_id"] for e in trace["trace"]]
    assert [e["seq"] for e in trace["trace"]] == list(range(1, len(finished) + 1))


async def test_a_task_whose_memory_cannot_be_written_keeps_its_result(config: Path) -> None:
    """Its listeners have heard of a success; it used to be stored as an internal failure without output."""
    store = "memory:\n  project_store: {type: sqlite, path: memory/project.db}\n"
    small(config, extra="task: {memory: {write: [project]}}\n", memory=store)
    (config / "workflows" / "small" / "memory").write_text("a file where the folder would be")
    async with client_of(runtime_with(config)) as client:
        accepted = (await client.post(RUNS, json={"input": 21})).json()
        task = await until(client, accepted["task_id"], *ENDED)
        heard = events_of((await client.get(f"/v1/tasks/{accepted['task_id']}/events")).text)[-1]
    assert (task["status"], task["output"], task["error"]) == ("success", 42, None)
    assert (heard[1], heard[2]["status"]) == ("task.finished", "success")


async def test_a_follower_of_a_task_that_runs_hears_its_end(config: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with client_of(runtime_with(small(config, op="wait"))) as client:
        task_id = (await client.post(RUNS, json={"input": {"go": str(go)}})).json()["task_id"]
        following = asyncio.create_task(client.get(f"/v1/tasks/{task_id}/events"))
        await until(client, task_id, "running")
        go.touch()
        events = events_of((await following).text)
    assert events[0][1] == "task.started" and events[-1][1] == "task.finished"


async def test_a_server_that_leaves_ends_the_streams_of_tasks_that_go_on(
    config: Path, tmp_path: Path
) -> None:
    """As those of runs: their readers come back, to whoever is there then."""
    app = create_app(runtime_with(small(config, op="wait")))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"input": {"go": str(tmp_path / "never")}}
            task_id = (await client.post(RUNS, json=body)).json()["task_id"]
            await until(client, task_id, "running")
            following = asyncio.create_task(client.get(f"/v1/tasks/{task_id}/events"))
            async with asyncio.timeout(60):
                while not app.state.followers:
                    await asyncio.sleep(0.01)
                for follower in tuple(app.state.followers):
                    follower.close()
                answer = await following
    assert answer.status_code == 200 and "task.finished" not in answer.text


async def test_artifacts_are_found_by_node_type_and_time(config: Path) -> None:
    async with client_of(runtime_with(sample(config))) as client:
        body = {"input": {"text": CONTRACT}}
        task = (await client.post("/v1/workflows/contract_review/run", json=body)).json()
        path = f"/v1/tasks/{task['task_id']}/artifacts"
        everything = (await client.get(path)).json()["artifacts"]
        tools = (await client.get(path, params={"node": "review", "type": "tool"})).json()["artifacts"]
        later = (await client.get(path, params={"since": "2100-01-01T00:00:00Z"})).json()["artifacts"]
        for wrong in ("1700000000", "2100-01-01", "2100-01-01T00:00:00"):
            assert (await client.get(path, params={"since": wrong})).status_code == 422
    assert {a["type"] for a in everything} == {"output", "tool", "telemetry"}
    assert {a["run_fingerprint"] for a in everything} == {task["metadata"]["run_fingerprint"]}
    assert {a["node_id"] for a in tools} == {"review"} and len(tools) == 3
    assert {a["content"]["tool"] for a in tools} == {"law_lookup"}
    telemetry = everything[-1]["content"]
    assert telemetry["status"] == "success" and len(telemetry["stages"]) == len(task["metadata"]["path"])
    assert later == []


async def test_a_task_is_cancelled_while_a_stage_runs_and_while_it_waits_for_its_turn(
    config: Path, tmp_path: Path
) -> None:
    small(config, op="wait", scheduler="scheduler: {max_concurrency: 1}\n")
    body = {"input": {"go": str(tmp_path / "never")}}
    async with client_of(runtime_with(config)) as client:
        first = (await client.post(RUNS, json=body)).json()["task_id"]
        await until(client, first, "running")
        second = (await client.post(RUNS, json=body)).json()["task_id"]
        for task_id in (second, first):
            answer = (await client.post(f"/v1/tasks/{task_id}/cancel")).json()
            assert (answer["status"], answer["error"]["code"]) == ("failure", "cancelled")
        again = (await client.post(f"/v1/tasks/{first}/cancel")).json()
        events = events_of((await client.get(f"/v1/tasks/{second}/events")).text)
    assert again["status"] == "failure"
    assert events[-1][1] == "task.finished" and events[-1][2]["status"] == "failure"


async def test_a_task_shows_where_it_is_and_a_queued_one_is_queued(config: Path, tmp_path: Path) -> None:
    small(config, op="wait", scheduler="scheduler: {max_concurrency: 1}\n")
    go = tmp_path / "go"
    async with client_of(runtime_with(config)) as client:
        ids = [(await client.post(RUNS, json={"input": {"go": str(go)}})).json()["task_id"] for _ in "12"]
        async with asyncio.timeout(60):
            while (first := (await client.get(f"/v1/tasks/{ids[0]}")).json())["progress"]["ended"] != 1:
                await asyncio.sleep(0.01)
        second = (await client.get(f"/v1/tasks/{ids[1]}")).json()
        listed = (await client.get("/v1/tasks")).json()["tasks"]
        go.touch()
        ended = [await until(client, task_id, *ENDED) for task_id in ids]
    assert (first["status"], second["status"]) == ("running", "queued")
    assert first["stages"] == [{"task": "", "stage": "x", "state": "running"}]
    assert first["progress"] == {"ended": 1, "reachable": 3}
    assert (second["stages"], second["progress"]) == ([], {"ended": 0, "reachable": 3})
    assert {one["task_id"]: one["status"] for one in listed} == {ids[0]: "running", ids[1]: "queued"}
    assert [(one["stages"], one["progress"]) for one in ended] == [([], None)] * 2


async def test_the_path_of_a_task_whose_caller_left_is_whole(config: Path, tmp_path: Path) -> None:
    runtime = runtime_with(small(config, op="wait"))
    async with runtime:
        request = TaskRequest({"go": str(tmp_path / "never")})
        left = asyncio.create_task(runtime.workflows.run("small", request))
        async with asyncio.timeout(60):
            while not any(len(one.records) > 1 for one in runtime.workflows.records.live.values()):
                await asyncio.sleep(0.01)
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left
        (task,) = await runtime.workflows.tasks.list(Viewer("default", None))
    assert (task["status"], task["error"]["code"]) == ("failure", "cancelled")
    assert task["metadata"]["path"] == ["s"]


async def test_a_full_queue_refuses_further_tasks(config: Path, tmp_path: Path) -> None:
    """E55: as many wait as may; the refused one leaves nothing behind."""
    small(config, op="wait", scheduler="scheduler: {max_concurrency: 1, max_queue_size: 1}\n")
    go = tmp_path / "go"
    async with client_of(runtime_with(config)) as client:
        taken = [(await client.post(RUNS, json={"input": {"go": str(go)}})).json() for _ in range(2)]
        refused = await client.post(RUNS, json={"input": {"go": str(go)}})
        go.touch()
        done = [await until(client, one["task_id"], *ENDED) for one in taken]
        listed = (await client.get("/v1/tasks")).json()["tasks"]
    assert (refused.status_code, refused.json()["code"]) == (503, "queue_full")
    assert "retry-after" in refused.headers
    assert [one["status"] for one in done] == ["success", "success"]
    assert len(listed) == 2


async def test_a_task_takes_no_longer_than_it_may(config: Path, tmp_path: Path) -> None:
    """E55: scheduler.task_timeout_s ends it with the code timeout."""
    small(config, op="wait", scheduler="scheduler: {task_timeout_s: 0.05}\n")
    async with client_of(runtime_with(config)) as client:
        answer = (await client.post(RUN, json={"input": {"go": str(tmp_path / "never")}})).json()
    assert (answer["status"], answer["error"]["code"]) == ("failure", "timeout")


async def test_e54_the_inspector_pauses_steps_and_lets_go(config: Path) -> None:
    """E54: a Task waits before a stage of `pause_before`; who looks at it changes nothing of it."""
    small(config, extra="task: {pause_before: [x]}\n")
    async with client_of(runtime_with(config)) as client:
        task_id = (await client.post(RUNS, json={"input": 21})).json()["task_id"]
        path = f"/v1/tasks/{task_id}"
        seen = []
        for stage in ("x", "e"):
            while not (task := (await client.get(path)).json())["paused"]:
                await asyncio.sleep(0.01)
            seen.append((task["paused"][0]["stage"], task["paused"][0]["input"]))
            if stage == "x":
                assert (await client.post(f"{path}/step")).status_code == 200
        await client.post(f"{path}/resume")
        ended = await until(client, task_id, *ENDED)
        too_late = await client.post(f"{path}/pause")
    assert seen == [("x", 21), ("e", 42)]
    assert (ended["status"], ended["output"]) == ("success", 42)
    assert (too_late.status_code, too_late.json()["code"]) == (409, "conflict")


async def test_e54_a_task_and_a_stage_of_it_replay_offline(config: Path) -> None:
    """E53, E54: the same path and hashes without any model; one stage into a scratch record."""
    answered: list[str] = []

    def once(request: CompletionRequest) -> Any:
        answered.append(request.messages[0].content)
        return lawyer(request)

    async with client_of(runtime_with(sample(config), once)) as client:
        body = {"input": {"text": CONTRACT}}
        task = (await client.post("/v1/workflows/contract_review/run", json=body)).json()
        asked, path = len(answered), f"/v1/tasks/{task['task_id']}"
        replayed = (await client.post(f"{path}/replay")).json()
        trace = (await client.get(f"{path}/trace")).json()["trace"]
        review = next(e for e in trace if e["node_id"] == "review")
        body = {"stage": review["stage_id"], "task": review["task"]}
        scratch = (await client.post(f"{path}/replay", json=body)).json()
        after = (await client.get(f"{path}/trace")).json()["trace"]
    assert replayed["divergence"] is None and replayed["reproduced"] and replayed["same"]
    assert (replayed["path"], replayed["output"]) == (task["metadata"]["path"], task["output"])
    assert scratch["divergence"] is None
    assert scratch["scratch"]["output"] == review["output"]
    assert scratch["scratch"]["tool_calls"][0]["result"] == review["tool_calls"][0]["result"]
    assert (len(answered), after) == (asked, trace)


async def test_agent_nodes_run_agents_of_the_runtime(config: Path) -> None:
    write(config, manifest("helper"))
    small(config)
    file = config / "workflows" / "small" / "workflow.yaml"
    file.write_text(
        file.read_text().replace(
            "kind: deterministic, role: linear, context: none, op: 'ops:double'",
            "kind: agent, role: linear, context: none, agent: helper",
        )
    )
    async with client_of(runtime_with(config, "hello")) as client:
        answer = (await client.post(RUN, json={"input": "hi"})).json()
        replayed = (await client.post(f"/v1/tasks/{answer['task_id']}/replay")).json()
    assert (answer["status"], answer["output"]) == ("success", "hello")
    assert answer["metadata"]["usage"]["output_tokens"] > 0
    assert replayed["same"]
