"""Schedules: each firing happens once, over processes, restarts and deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.api.auth import Auth
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import CallerContext
from tests.integration.agents_folder import client_of, manifest, runtime_of, store_in, write
from tests.integration.workflow.folders import small
from tests.platform.at_rest import places_of

PATIENCE = 30.0
HOUR = 3600.0
#: seconds after which a process that took a firing counts as dead
TAKEN = 31.0
#: the clock begins at 22:13:20
HOURLY: dict[str, Any] = {"cron": "0 * * * *", "query": "What is new?"}
BODY = {**HOURLY, "agent": "a"}


@pytest.fixture(params=("sqlite", "postgres"))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., AgentRuntime]:
    """Returns the runtime of one more process, whose agent has these schedules."""
    if request.param == "postgres":
        store_in(tmp_path, request.getfixturevalue("postgres_database"))

    def make(clock: ManualClock, *schedules: dict[str, Any], **spec: Any) -> AgentRuntime:
        write(tmp_path, manifest("a", schedules=[*schedules], **spec))
        return runtime_of(tmp_path, ScriptedProvider("done", repeat=True), clock=clock)

    return make


async def scheduled_runs(client: httpx.AsyncClient) -> list[str]:
    runs = (await client.get("/v1/runs?limit=1000")).json()["runs"]
    return sorted(run["metadata"]["scheduled_at"][11:16] for run in runs)


async def until(client: httpx.AsyncClient, clock: ManualClock, expected: list[str], count: int = 1) -> None:
    """Waits until exactly these runs have begun, and all `count` schedules wait for a time to come."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            clock.advance(0.5)
            await asyncio.sleep(0.01)
            found = await scheduled_runs(client)
            listed = (await client.get("/v1/schedules")).json()["schedules"]
            settled = [one for one in listed if one["paused"] or seconds(one["next_at"]) > clock.now()]
            if len(found) >= len(expected) and len(settled) == len(listed) == count:
                break
    assert found == expected


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def test_a_schedule_of_a_file_fires_at_its_times_once_over_two_processes(made) -> None:
    clock = ManualClock()
    async with client_of(made(clock, HOURLY)) as client, client_of(made(clock, HOURLY)):
        await until(client, clock, [])
        clock.advance(HOUR)
        await until(client, clock, ["23:00"])
        clock.advance(HOUR)
        await until(client, clock, ["00:00", "23:00"])
        (one,) = (await client.get("/v1/schedules?agent=a")).json()["schedules"]
        run = (await client.get(f"/v1/runs/{one['last_run_id']}")).json()
        assert (run["metadata"]["schedule"], one["source"], one["last_at"][11:16]) == (
            one["id"], "file", "00:00",
        )  # fmt: skip
        assert run["session_id"].startswith(one["id"])


@pytest.mark.parametrize(
    ("on_missed", "expected"),
    [("skip", []), ("once", ["02:00"]), ("all", ["00:00", "01:00", "02:00", "23:00"])],
)
async def test_firings_that_nobody_was_there_for(made, on_missed: str, expected: list[str]) -> None:
    clock, schedule = ManualClock(), {**HOURLY, "on_missed": on_missed}
    async with client_of(made(clock, schedule)) as client:
        await until(client, clock, [])
    clock.advance(4 * HOUR)
    async with client_of(made(clock, schedule)) as client:
        await until(client, clock, expected)


async def test_a_process_that_dies_around_a_firing_neither_loses_nor_doubles_it(made) -> None:
    clock = ManualClock()
    runtime = made(clock, HOURLY)
    async with client_of(runtime) as client:
        await until(client, clock, [])
        (one,) = (await client.get("/v1/schedules")).json()["schedules"]
    async with client_of(made(clock, {**HOURLY, "on_missed": "all"})) as client:
        runtime = client._transport.app.state.runtime  # type: ignore[attr-defined]
        store = await runtime.durable.open()
        await until(client, clock, [])
        await runtime.schedules.close()
        clock.advance(HOUR)
        # it takes the firing and dies before the run is accepted
        (taken,) = await store.take_schedules(clock.now(), clock.now() + TAKEN, 10)
        assert taken.id == one["id"]
    async with client_of(made(clock, {**HOURLY, "on_missed": "all"})) as client:
        clock.advance(TAKEN)
        await until(client, clock, ["23:00"])
        # as if it had died before the schedule moved on: the run is accepted already
        runtime = client._transport.app.state.runtime  # type: ignore[attr-defined]
        store = await runtime.durable.open()
        await store.pause_schedule(one["id"], False, taken.instant, taken.instant)
        await until(client, clock, ["23:00"])


async def test_schedules_of_files_end_and_change_with_their_files(made) -> None:
    clock, daily = ManualClock(), {"cron": "0 8 * * *", "timezone": "Europe/Madrid", "query": "Good morning"}
    async with client_of(made(clock, HOURLY, daily)) as client:
        await until(client, clock, [], 2)
        listed = (await client.get("/v1/schedules")).json()["schedules"]
        hourly = next(one["id"] for one in listed if one["query"] == HOURLY["query"])
        assert (await client.post(f"/v1/schedules/{hourly}/pause")).json()["paused"]
        assert (await client.delete(f"/v1/schedules/{hourly}")).status_code == 409
    changed = {**HOURLY, "jitter": 60}
    async with client_of(made(clock, changed, {**daily, "query": "Hello"})) as client:
        async with asyncio.timeout(PATIENCE):
            while "Hello" not in (listed := (await client.get("/v1/schedules")).text):
                await asyncio.sleep(0.01)
        found = {one["query"]: one for one in (await client.get("/v1/schedules")).json()["schedules"]}
        assert set(found) == {"Hello", HOURLY["query"]}
        same = found[HOURLY["query"]]
        assert (same["id"], same["paused"], same["jitter"], same["next_at"]) == (hourly, True, 60.0, None)
    async with client_of(made(clock)) as client:
        async with asyncio.timeout(PATIENCE):
            while (await client.get("/v1/schedules")).json()["schedules"]:
                await asyncio.sleep(0.01)


async def test_a_schedule_is_created_paused_run_and_deleted_over_http(made) -> None:
    clock = ManualClock()
    async with client_of(made(clock)) as client:
        answer = await client.post("/v1/schedules", json={**BODY, "session": "s", "jitter": 600})
        assert answer.status_code == 201, answer.text
        one = answer.json()
        path = f"/v1/schedules/{one['id']}"
        assert (await client.get(path)).json() == one
        assert (one["next_at"][11:16], one["source"]) == ("23:00", "api")
        assert (await client.post(f"{path}/pause")).json()["next_at"] is None
        clock.advance(2 * HOUR)
        await until(client, clock, [])
        assert (await client.post(f"{path}/resume")).json()["next_at"][11:16] == "01:00"
        begun = await client.post(f"{path}/run")
        assert begun.status_code == 202
        run = (await client.get(begun.json()["links"]["self"])).json()
        assert (run["session_id"], run["metadata"]["schedule"]) == ("s", one["id"])
        clock.advance(HOUR + 600)
        await until(client, clock, ["00:13", "01:00"])
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).status_code == 404
        assert (await client.post(f"{path}/run")).status_code == 404
        clock.advance(2 * HOUR)
        await until(client, clock, ["00:13", "01:00"], 0)


@pytest.mark.parametrize("made", ["sqlite"], indirect=True)
async def test_the_input_rules_check_a_query_before_its_schedule_is_stored(made, tmp_path: Path) -> None:
    rules = [{"type": "pii_detection"}, {"type": "topic_filter", "forbidden_topics": ["violence"]}]
    async with client_of(made(ManualClock(), guardrails={"input": rules})) as client:
        one = await client.post("/v1/schedules", json={**BODY, "query": "Write to ann@example.com"})
        assert (one.status_code, one.json()["query"]) == (201, "Write to [EMAIL]")
        assert places_of("ann@example.com", tmp_path / "data") == []
        refused = await client.post("/v1/schedules", json={**BODY, "query": "More violence"})
        assert (refused.status_code, refused.json()["code"]) == (422, "guardrail_blocked")
        assert (await client.get("/v1/schedules")).json()["schedules"] == [one.json()]


@pytest.mark.parametrize("made", ["sqlite"], indirect=True)
async def test_a_schedule_of_a_workflow_begins_tasks(made, tmp_path: Path) -> None:
    small(tmp_path, extra="schedules: [{cron: '0 * * * *', input: 21}]\n")
    clock = ManualClock()
    async with client_of(made(clock)) as client:
        async with asyncio.timeout(PATIENCE):
            while not (listed := (await client.get("/v1/schedules?workflow=small")).json()["schedules"]):
                await asyncio.sleep(0.01)
        clock.advance(HOUR)
        async with asyncio.timeout(PATIENCE):
            while not (listed[0]["last_task_id"]):
                clock.advance(0.5)
                await asyncio.sleep(0.01)
                listed = (await client.get("/v1/schedules?workflow=small")).json()["schedules"]
            path = f"/v1/tasks/{listed[0]['last_task_id']}"
            while (task := (await client.get(path)).json())["status"] in ("queued", "running"):
                await asyncio.sleep(0.01)
        assert (task["status"], task["output"]) == ("success", 42)
        assert len((await client.get("/v1/tasks")).json()["tasks"]) == 1


@pytest.mark.parametrize("made", ["sqlite"], indirect=True)
async def test_a_firing_that_cannot_begin_says_why_and_is_tried_again(made, tmp_path: Path) -> None:
    clock = ManualClock()
    async with client_of(made(clock)) as client:
        created = (await client.post("/v1/schedules", json=BODY)).json()
    agent = tmp_path / "agents" / "a.agent.yaml"
    text = agent.read_text()
    (tmp_path / "agents" / "b.agent.yaml").write_text(text.replace("name: a", "name: b"))
    agent.unlink()
    provider = ScriptedProvider("done", repeat=True)
    async with client_of(runtime_of(tmp_path, provider, clock=clock)) as client:
        clock.advance(HOUR)
        async with asyncio.timeout(PATIENCE):
            while not (one := (await client.get(f"/v1/schedules/{created['id']}")).json())["error"]:
                clock.advance(0.5)
                await asyncio.sleep(0.01)
        assert "There is no agent named 'a'" in one["error"]
    async with client_of(made(clock)) as client:
        await until(client, clock, ["23:00"])
        assert (await client.get(f"/v1/schedules/{created['id']}")).json()["error"] is None


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"cron": "every day"}, 422, "not valid: cron: it has five fields"),
        ({"timezone": "Mars/Olympus"}, 422, "no time zone"),
        ({"workflow": "w"}, 422, "set either 'agent' or 'workflow'"),
        ({"query": None}, 422, "an agent takes a query"),
        ({"input": 1}, 422, "no input"),
        ({"jitter": -1}, 422, "jitter"),
        ({"on_missed": "never"}, 422, "on_missed"),
        ({"agent": "nobody"}, 404, "no agent named 'nobody'"),
        ({"agent": None, "query": None, "workflow": "w"}, 422, "no workflows"),
        ({"agent": "other"}, 403, "agents:run:other"),
    ],
)
async def test_a_wrong_schedule_is_refused_and_named(
    tmp_path: Path, change: dict[str, Any], status: int, says: str
) -> None:
    class Callers:
        async def authenticate(self, token: str) -> CallerContext:
            scopes = {"runs:write", "runs:read", "agents:run:a", "agents:run:nobody", "workflows:run"}
            return CallerContext("me", "default", scopes=frozenset(scopes))

    write(tmp_path, manifest("a"), manifest("other"))
    runtime = runtime_of(tmp_path, ScriptedProvider("done"))
    async with client_of(runtime, Auth((Callers(),))) as client:
        client.headers["authorization"] = "Bearer x"
        answer = await client.post("/v1/schedules", json={**BODY, **change})
        assert (answer.status_code, says in answer.text) == (status, True), answer.text
        assert (await client.get("/v1/schedules")).json() == {"schedules": [], "next": None}
