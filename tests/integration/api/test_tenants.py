"""S3 over HTTP: every route of the app, none is left out, asked for what is another's.

Alice has a session, runs of each kind, a Task, a trace, memories. Bob, of her tenant, may do what all
principals may; Eve and a namesake of Alice, of another tenant, are admins there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from astromesh.access.scopes import ADMIN, SCOPES
from astromesh.api.app import create_app
from astromesh.api.auth import Auth
from astromesh.types import CallerContext, CompletionRequest
from tests.integration.agents_folder import manifest, write
from tests.integration.api.test_route_scopes import EVERY, Guarded
from tests.integration.workflow.folders import runtime_with, small

SECRET = "zanzibarquince"
SESSION = "alices-session"
#: what an operator of one's own tenant is to see of others: acts, never content
OF_THE_TENANT = {"/v1/audit"}
#: of administrators alone, on a server with keys: test_operations.py asks them for what is another tenant's
OF_KEYS = {"/v1/keys", "/v1/keys/{key_id}"}
OTHERS = [route for route in EVERY if route.path not in OF_KEYS]
READS = [route for route in OTHERS if route.method == "GET" and route.scope]
#: what is done to something that a path names; runs of agents and workflows begin new things
STEERS = [route for route in OTHERS if route.method in ("POST", "DELETE") and "_id" in route.path]


class Callers:
    async def authenticate(self, token: str) -> CallerContext | None:
        person = frozenset(SCOPES) - {ADMIN, "sessions:any"}
        known = {
            "alice": CallerContext("alice", "acme", scopes=person),
            "bob": CallerContext("bob", "acme", scopes=person),
            "eve": CallerContext("eve", "other", scopes=frozenset({ADMIN, *SCOPES})),
            #: of the same name as Alice, elsewhere
            "alias": CallerContext("alice", "other", scopes=frozenset({ADMIN, *SCOPES})),
        }
        return known.get(token)


def by(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {who}", "a2a-version": "1.0"}


class Hers(NamedTuple):
    """What is Alice's, by the names of path parameters; `lists` are ids that no list of others may hold."""

    client: TestClient
    named: dict[str, str]
    lists: tuple[str, ...]

    def path(self, route: Guarded) -> str:
        path = route.described
        path += "?a={run_id}&b={run_id}" if path == "/v1/runs/compare" else ""
        path += "?a={task_id}&b={task_id}" if path == "/v1/tasks/compare" else ""
        name = "small" if "/workflows/" in path else "helper"
        return path.format_map({**self.named, "name": name})


def says_it(request: CompletionRequest) -> str:
    return f"You said {request.messages[-1].content}"


@pytest.fixture(scope="module")
def hers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hers]:
    folder = tmp_path_factory.mktemp("tenants")
    memory = {"conversational": {"backend": "sqlite"}, "episodic": {"backend": "sqlite"}}
    runtime = runtime_with(small(write(folder / "config", manifest("helper", memory=memory))), says_it)
    with TestClient(create_app(runtime, Auth((Callers(),)))) as client:
        yield made(client)


def made(client: TestClient) -> Hers:
    asked = {"query": SECRET, "session_id": SESSION}
    run = client.post("/v1/agents/helper/run", json=asked, headers=by("alice")).json()
    accepted = client.post("/v1/agents/helper/runs", json=asked, headers=by("alice")).json()
    task = client.post("/v1/workflows/small/runs", json={"input": SECRET}, headers=by("alice")).json()
    said = {"model": "helper", "input": SECRET}
    response = client.post("/v1/responses", json=said, headers=by("alice")).json()["id"]
    task_id = task["task_id"]
    until(client, f"/v1/tasks/{task_id}", "success")
    until(client, f"/v1/runs/{accepted['run_id']}", "completed")
    hourly = {"agent": "helper", "query": SECRET, "cron": "0 * 29 2 *"}
    schedule = client.post("/v1/schedules", json=hourly, headers=by("alice")).json()["id"]
    named = {
        "run_id": accepted["run_id"],
        "response_id": response,
        "session_id": SESSION,
        "config": "none",
        "task_id": task_id,
        "schedule_id": schedule,
        "id": "1",  # callbacks need a secret, which this server has not
        "trace_id": run["metadata"]["trace_id"],
        "principal": "alice",
        "result_id": "result_1",
        "step": "1",
        "evaluation_id": "eval_none",
        "pipeline": "none",
        "document": "none",
        "channel": "none",
    }
    runs = (run["run_id"], accepted["run_id"], response.replace("resp_", "run_"))
    return Hers(client, named, (SESSION, task_id, schedule, *runs, response, named["trace_id"]))


def until(client: TestClient, path: str, status: str) -> None:
    end = time.monotonic() + 60
    while client.get(path, headers=by("alice")).json()["status"] != status:
        assert time.monotonic() < end, f"{path} did not come to {status}"
        time.sleep(0.01)


@pytest.mark.parametrize("route", READS, ids=str)
@pytest.mark.parametrize("who", ["eve", "alias"])
def test_no_route_shows_anything_of_another_tenant(hers: Hers, route: Guarded, who: str) -> None:
    shows_nothing(hers, route, who)


@pytest.mark.parametrize("route", [r for r in READS if r.path not in OF_THE_TENANT], ids=str)
def test_no_route_shows_anything_of_another_principal(hers: Hers, route: Guarded) -> None:
    shows_nothing(hers, route, "bob")


def shows_nothing(hers: Hers, route: Guarded, who: str) -> None:
    path = hers.path(route)
    answer = hers.client.get(path, headers=by(who))
    assert SECRET not in answer.text
    if answer.status_code < 400:
        assert [own for own in hers.lists if own in answer.text.replace(path, "")] == []
    else:
        assert answer.status_code in (404, 405, 410) or "/a2a/" in path  # A2A has errors of its own


@pytest.mark.parametrize("route", STEERS, ids=str)
@pytest.mark.parametrize("who", ["eve", "alias", "bob"])
def test_nobody_steers_or_deletes_what_is_anothers(hers: Hers, route: Guarded, who: str) -> None:
    body = {"decision": "approve"}
    answer = hers.client.request(route.method, hers.path(route), json=body, headers=by(who))
    assert SECRET not in answer.text
    assert (
        answer.status_code in (404, 422)
        or "/a2a/" in route.path
        or (who != "bob" and route.path.endswith("{session_id:path}"))
    )
    assert everything(hers) == {"run": "completed", "task": "success", "turns": 4}


@pytest.mark.parametrize("who", ["eve", "alias", "bob"])
def test_nobody_continues_or_refers_to_what_is_anothers(hers: Hers, who: str) -> None:
    response = hers.named["response_id"]
    item = {"type": "item_reference", "id": response.replace("resp_", "msg_") + "_0"}
    for said, more in (("x", {"previous_response_id": response}), ([item], {})):
        body = {"model": "helper", "input": said, **more}
        answer = hers.client.post("/v1/responses", json=body, headers=by(who))
        assert (answer.status_code, SECRET in answer.text) == (400, False)


def everything(hers: Hers) -> dict[str, Any]:
    """What Alice still has."""

    def get(path: str) -> Any:
        return hers.client.get(path, headers=by("alice")).json()

    return {
        "run": (get(f"/v1/runs/{hers.named['run_id']}"))["status"],
        "task": (get(f"/v1/tasks/{hers.named['task_id']}"))["status"],
        "turns": len((get(f"/v1/agents/helper/sessions/{SESSION}"))["turns"]),
    }


def test_alice_herself_is_shown_all_of_it(hers: Hers) -> None:
    """What the others were not shown is there."""
    shown = [hers.client.get(hers.path(route), headers=by("alice")) for route in READS]
    text = "".join(answer.text for answer in shown if answer.status_code == 200)
    assert [own for own in (SECRET, *hers.lists) if own not in text] == []
