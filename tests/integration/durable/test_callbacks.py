"""Callbacks: who asked to be told hears once per status, signed, over failures and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from astromesh.durable.base import DeliveryQuery
from astromesh.durable.callbacks import CallbackSender
from astromesh.errors import ConfigError, StoreUnavailable
from astromesh.net.http import Http
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ManualClock, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.workflow.folders import small
from tests.integration.workflow.test_people import CHOOSE, desk

PATIENCE = 30.0
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DAY = 86_400.0


class Receiver:
    """Answers each call with the next status of `script`, the last one for ever, and keeps what came."""

    def __init__(self, *script: int) -> None:
        self.script = list(script) or [204]
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.heard.append((headers, await request.read()))
        status = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return web.Response(status=status, headers={"location": "/elsewhere"} if status == 302 else None)

    async def hears(self, count: int, tick: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Returns the messages, when there are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(self.heard) < count:
                tick()
                await asyncio.sleep(0.01)
        return [orjson.loads(body) for _, body in self.heard]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_post("/hook", made.answer)
    app.router.add_get("/elsewhere", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield made
    await runner.cleanup()


@pytest.fixture(params=("sqlite", "postgres"))
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """`async with served(script, **spec) as (client, runtime)`: a server with a secret for callbacks."""

    @asynccontextmanager
    async def serve(
        script: Any = "done", clock: ManualClock | None = None, secret: str = SECRET, **spec: Any
    ) -> AsyncIterator[tuple[Any, AgentRuntime]]:
        settings: dict[str, Any] = {
            "callbacks": {"secret_env": "CALLBACKS"}, "network": {"allow_hosts": ["127.0.0.1"]},
        }  # fmt: skip
        if request.param == "postgres":
            settings["storage"] = {"url": request.getfixturevalue("postgres_database")}
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (tmp_path / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": settings}))
        write(tmp_path, manifest("a", **spec))
        runtime = runtime_of(
            tmp_path, ScriptedProvider(script, repeat=True), clock=clock, env={"CALLBACKS": secret}
        )
        async with client_of(runtime) as client:
            yield client, runtime

    return serve


def body_of(receiver: Receiver, **callback: Any) -> dict[str, Any]:
    return {"query": "hello", "session_id": "s", "callback": {"url": receiver.url, **callback}}


async def listed(client: Any, state: str) -> dict[str, Any]:
    """Returns the newest callback in a state, when there is one."""
    async with asyncio.timeout(PATIENCE):
        while not (found := (await client.get(f"/v1/callbacks?state={state}")).json()["callbacks"]):
            await asyncio.sleep(0.01)
    one: dict[str, Any] = found[0]
    return one


async def test_the_end_of_a_run_is_told_once_and_signed(served, receiver: Receiver) -> None:
    """The official library verifies it; the body is the run as `GET /v1/runs/{id}` shows it."""
    async with served() as (client, _):
        body = body_of(receiver, headers={"authorization": "Bearer of-the-receiver"})
        accepted = (await client.post("/v1/agents/a/runs", json=body)).json()
        (message,) = await receiver.hears(1)
        run = (await client.get(f"/v1/runs/{accepted['run_id']}")).json()
        headers, raw = receiver.heard[0]
        assert Webhook(SECRET).verify(raw, headers) == message
        assert message["type"] == "run.completed"
        assert {key: message["data"][key] for key in run if key != "decisions"} == {
            key: value for key, value in run.items() if key != "decisions"
        }
        assert headers["authorization"] == "Bearer of-the-receiver"
        assert accepted["run_id"].removeprefix("run_") in headers["webhook-id"]  # in no other database
        async with asyncio.timeout(PATIENCE):
            while (listed := (await client.get("/v1/callbacks")).json())["callbacks"][0][
                "state"
            ] != "delivered":
                await asyncio.sleep(0.01)
        (one,) = listed["callbacks"]
        assert (one["event"], one["attempts"], one["http_status"], listed["next"]) == (
            "completed",
            1,
            204,
            None,
        )
    async with served() as (client, _):  # a restart repeats nothing
        assert len(receiver.heard) == 1


async def test_a_plain_request_with_a_callback_is_durable_and_answers_as_ever(served, receiver) -> None:
    async with served() as (client, _):
        answer = (await client.post("/v1/agents/a/run", json=body_of(receiver))).json()
        assert answer["response"] == "done"
        (message,) = await receiver.hears(1)
        assert message["data"]["result"]["response"] == "done"


async def test_tasks_of_workflows_are_told_as_runs_are(tmp_path: Path, served, receiver) -> None:
    """By a request or by the manifest; a Task that a caller waits for is durable then."""
    hook = f"{{url: '{receiver.url}', events: [failed], headers: {{x-key: '${{CALLBACKS}}'}}}}"
    small(tmp_path, "told", "fail", f"callback: {hook}\n")
    small(tmp_path)
    receiver.script = [410, 204]
    async with served() as (client, _):
        body = {"input": 21, "callback": {"url": receiver.url}}
        accepted = (await client.post("/v1/workflows/small/runs", json=body)).json()
        (message,) = await receiver.hears(1)
        assert Webhook(SECRET).verify(receiver.heard[0][1], receiver.heard[0][0]) == message
        assert (message["type"], message["data"]["task_id"]) == ("task.completed", accepted["task_id"])
        assert (message["data"]["output"], message["data"]["waiting_for"]) == (42, [])
        dead = await listed(client, "dead")
        assert (dead["task_id"], dead["workflow"], dead["run_id"], dead["event"]) == (
            accepted["task_id"], "small", None, "completed",
        )  # fmt: skip
        assert (await client.post(f"/v1/callbacks/{dead['id']}/retry")).status_code == 204
        await receiver.hears(2)
        assert receiver.heard[0][0]["webhook-id"] == receiver.heard[1][0]["webhook-id"]
        answer = (await client.post("/v1/workflows/told/run", json={"input": 1})).json()
        told = (await receiver.hears(3))[2]
        assert (answer["status"], told["type"], told["data"]["task_id"]) == (
            "failure", "task.failed", answer["task_id"],
        )  # fmt: skip
        assert receiver.heard[2][0]["x-key"] == SECRET
        for file in tmp_path.rglob("*.db*"):
            assert SECRET.encode() not in file.read_bytes()
        await client.post("/v1/agents/a/run", json=body_of(receiver))
        await receiver.hears(4)
        found = (await client.get("/v1/callbacks")).json()["callbacks"]
        assert [bool(one["task_id"]) for one in found] == [True, True, False]
        path = f"/v1/callbacks?task={answer['task_id']}"
        assert [one["event"] for one in (await client.get(path)).json()["callbacks"]] == ["failed"]


async def test_a_question_of_a_task_and_its_cancelling_are_told(tmp_path: Path, served, receiver) -> None:
    desk(tmp_path, f"role: decision, {CHOOSE}")
    async with served() as (client, _):
        body = {"input": 21, "callback": {"url": receiver.url}}
        task_id = (await client.post("/v1/workflows/desk/runs", json=body)).json()["task_id"]
        (message,) = await receiver.hears(1)
        assert (message["type"], message["data"]["status"]) == ("task.waiting", "running")
        (question,) = message["data"]["waiting_for"]
        assert (question["question"], question["edges"]) == ("Accept or reject?", ["accept", "reject"])
        await client.post(f"/v1/tasks/{task_id}/cancel")
        messages = await receiver.hears(2)
        assert [one["type"] for one in messages] == ["task.waiting", "task.cancelled"]


async def test_an_agent_with_a_callback_tells_of_all_its_runs_unless_a_request_has_its_own(
    served, receiver
) -> None:
    callback = {"url": receiver.url, "events": ["completed"], "headers": {"x-key": "of-the-agent"}}
    async with served(callback=callback) as (client, _):
        body = {"query": "hello", "session_id": "s"}
        assert (await client.post("/v1/agents/a/run", json=body)).json()["response"] == "done"
        (message,) = await receiver.hears(1)
        assert (message["type"], receiver.heard[0][0]["x-key"]) == ("run.completed", "of-the-agent")
        await client.post("/v1/agents/a/run", json=body_of(receiver, headers={"x-key": "of-the-request"}))
        await receiver.hears(2)
        assert receiver.heard[1][0]["x-key"] == "of-the-request"


async def test_a_receiver_that_fails_is_called_again_with_the_same_id_after_a_restart(
    served, receiver
) -> None:
    receiver.script = [500, 500, 200]
    clock = ManualClock()
    async with served(clock=clock) as (client, _):
        await client.post("/v1/agents/a/runs", json=body_of(receiver))
        await receiver.hears(1, lambda: clock.advance(0.5))
    clock.advance(3600.0)
    async with served(clock=clock) as (client, _):
        await receiver.hears(3, lambda: clock.advance(60.0))
        assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 1


async def test_a_receiver_that_fails_for_a_day_is_listed_as_dead_and_can_be_tried_again(
    served, receiver
) -> None:
    receiver.script = [503]
    clock = ManualClock()
    async with served(clock=clock) as (client, runtime):
        await client.post("/v1/agents/a/runs", json=body_of(receiver, events=["completed"]))
        await receiver.hears(1, lambda: clock.advance(0.5))  # the run has ended
        began = clock.now()
        async with asyncio.timeout(PATIENCE):
            while not (dead := (await client.get("/v1/callbacks?state=dead")).json()["callbacks"]):
                clock.advance(600.0)
                await asyncio.sleep(0.01)
        assert clock.now() - began > 0.9 * DAY
        assert dead[0]["error"] == "The receiver answered 503."
        assert len(receiver.heard) == dead[0]["attempts"] > 10
        receiver.script, before = [200], len(receiver.heard)
        callbacks = runtime.runner.callbacks
        assert callbacks is not None
        assert await callbacks.list(DeliveryQuery("another tenant", None)) == ()
        assert not await callbacks.retry(dead[0]["id"], "another tenant", None)
        assert not await callbacks.retry(dead[0]["id"], "default", "another principal")
        path = f"/v1/callbacks/{dead[0]['id']}/retry"
        assert (await client.post(path)).status_code == 204
        await receiver.hears(before + 1, lambda: clock.advance(1.0))
        assert (await client.post(path)).status_code == 404
        acts = (await client.get("/v1/audit?action=callbacks.retry")).json()["acts"]
        which = str(dead[0]["id"])
        assert [(one["object"], one["outcome"]) for one in acts] == [(which, "refused"), (which, "done")]


async def test_a_redirect_is_a_failure_and_no_call_elsewhere(served, receiver) -> None:
    """A 302 would turn the call into a GET without body and signature."""
    receiver.script = [302, 200]
    clock = ManualClock()
    async with served(clock=clock) as (client, _):
        await client.post("/v1/agents/a/runs", json=body_of(receiver))
        messages = await receiver.hears(2, lambda: clock.advance(60.0))
        assert [message["type"] for message in messages] == ["run.completed"] * 2
        assert (await listed(client, "delivered"))["attempts"] == 2


async def test_a_store_that_was_away_is_asked_again_soon() -> None:
    """Later, there are no callbacks to expect."""
    clock, script = ManualClock(), [StoreUnavailable("The database does not answer.")]

    async def open_store() -> None:
        if script:
            raise script.pop()

    async def never(*_: Any) -> Any:
        raise AssertionError("there is no callback")

    async with Http() as http:
        sender = CallbackSender(open_store, http, SECRET, clock, never, never)
        sender.start()
        async with asyncio.timeout(PATIENCE):
            while len(clock.slept) < 2:
                await asyncio.sleep(0)
                clock.advance(1.0)
        await sender.close()
    assert clock.slept == [5.0, 30.0]


async def test_a_receiver_that_is_gone_is_not_called_again(served, receiver) -> None:
    receiver.script = [410]
    async with served() as (client, _):
        await client.post("/v1/agents/a/runs", json=body_of(receiver))
        assert (await listed(client, "dead"))["http_status"] == 410


async def test_waiting_failing_and_cancelling_are_told_to_those_who_asked(served, receiver) -> None:
    def fails(_: Any) -> str:
        raise RuntimeError("no model")

    clock = ManualClock()
    async with served(fails, clock=clock) as (client, _):
        await client.post("/v1/agents/a/runs", json=body_of(receiver, events=["failed"]))
        later = body_of(receiver) | {"not_before": "2023-11-15T00:00:00Z", "session_id": "other"}
        run = (await client.post("/v1/agents/a/runs", json=later)).json()["run_id"]
        await receiver.hears(1, lambda: clock.advance(0.5))
        await client.post(f"/v1/runs/{run}/cancel")
        messages = await receiver.hears(2, lambda: clock.advance(0.5))
        assert [m["type"] for m in messages] == ["run.failed", "run.cancelled"]
        unasked = body_of(receiver, events=["completed"])
        await client.post("/v1/agents/a/run", json=unasked)
        assert len(receiver.heard) == 2


@pytest.mark.parametrize("served", ["sqlite"], indirect=True)
async def test_headers_stand_on_no_disk_in_plain_and_callbacks_are_erased_with_their_runs(
    tmp_path: Path, served, receiver
) -> None:
    async with served() as (client, _):
        await client.post("/v1/agents/a/run", json=body_of(receiver, headers={"x-key": "hush-hush-7"}))
        await receiver.hears(1)
        assert receiver.heard[0][0]["x-key"] == "hush-hush-7"
        for file in tmp_path.rglob("*.db*"):
            assert b"hush-hush-7" not in file.read_bytes()
        await listed(client, "delivered")
        assert (await client.delete("/v1/principals/anonymous/data")).status_code == 200
        assert (await client.get("/v1/callbacks")).json()["callbacks"] == []


@pytest.mark.parametrize(
    ("callback", "param"),
    [
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "not a url"}, "url"),
        ({"url": "https://exa mple.com/"}, "url"),
        ({"url": "https://user:secret@example.com/"}, "url"),
        ({"url": "http://127.0.0.1:1/", "events": []}, "events"),
        ({"url": "http://127.0.0.1:1/", "events": ["ended"]}, "events"),
        ({"url": "http://127.0.0.1:1/", "headers": {"webhook-id": "mine"}}, "headers"),
        ({"url": "http://127.0.0.1:1/", "headers": {"a b": "c"}}, "headers"),
        ({"url": "http://127.0.0.1:1/", "headers": {"a": "b\r\nc: d"}}, "headers"),
        ({"url": "http://127.0.0.1:1/", "secret": "x"}, "secret"),
    ],
)
async def test_a_wrong_callback_is_refused_and_named(tmp_path: Path, callback: Any, param: str) -> None:
    write(tmp_path, manifest("a"))
    async with client_of(runtime_of(tmp_path, ScriptedProvider("done"))) as client:
        body = {"query": "hello", "session_id": "s", "callback": callback}
        answer = await client.post("/v1/agents/a/runs", json=body)
        assert answer.status_code == 422
        assert f"callback.{param}" in answer.json()["detail"]


async def test_a_server_without_a_secret_refuses_callbacks_and_says_what_to_set(tmp_path: Path) -> None:
    write(tmp_path, manifest("a"))
    async with client_of(runtime_of(tmp_path, ScriptedProvider("done"))) as client:
        body = {"query": "hello", "session_id": "s", "callback": {"url": "https://example.com/hook"}}
        answer = await client.post("/v1/agents/a/runs", json=body)
        assert (answer.status_code, "callbacks.secret_env" in answer.json()["detail"]) == (422, True)
        assert (await client.get("/v1/callbacks")).json() == {"callbacks": [], "next": None}


async def test_a_server_without_a_secret_does_not_start_with_a_callback_of_an_agent(tmp_path: Path) -> None:
    write(tmp_path, manifest("a", callback={"url": "https://example.com/hook"}))
    with pytest.raises(ConfigError, match=r"callbacks\.secret_env"):
        await runtime_of(tmp_path, ScriptedProvider("done")).bootstrap()


async def test_a_private_address_is_not_called_unless_the_operator_allows_it(
    tmp_path: Path, receiver: Receiver
) -> None:
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
    settings = {"callbacks": {"secret_env": "CALLBACKS"}}
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": settings}))
    write(tmp_path, manifest("a"))
    runtime = runtime_of(tmp_path, ScriptedProvider("done"), env={"CALLBACKS": SECRET})
    async with client_of(runtime) as client:
        await client.post("/v1/agents/a/run", json=body_of(receiver))
        async with asyncio.timeout(PATIENCE):
            while (
                not (tried := (await client.get("/v1/callbacks")).json()["callbacks"])
                or not tried[0]["error"]
            ):
                await asyncio.sleep(0.01)
        assert "network.allow_hosts" in tried[0]["error"]
        assert not receiver.heard
