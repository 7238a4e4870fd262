"""S3: every route, called with what is another tenant's, shows nothing of it and changes nothing of it.

The routes are those of the app, the bodies those of its OpenAPI document, so that a new route, and with it a
new store, is walked without a word here. What a path parameter of a new name may be must be told.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import yaml
from starlette.testclient import TestClient

from astromesh.access.scopes import ADMIN, SCOPES
from astromesh.api.app import create_app
from astromesh.api.auth import Auth
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, write
from tests.integration.api.test_route_scopes import EVERY, PUBLIC, Guarded
from tests.integration.knowledge.rag_files import pipeline_file
from tests.integration.workflow.folders import runtime_with, small
from tests.integration.workflow.test_people import CHOOSE, desk
from tests.platform.postgres import ExternalPostgres, PostgresServer, database_url

SECRET = "zanzibarquince"
SESSION, KEY, DOCUMENT = "alices-session", "alices-key", "alices-document"
#: somebody of the same name in another tenant, and a stranger there
OTHERS = ("alias", "eve")
WALKED = [route for route in EVERY if route.path not in PUBLIC and route.method not in ("WS", "HEAD")]
#: parts of answers that differ from one moment to the next
_OF_THE_MOMENT = {"duration_ms", "minutes"}
#: reads about the server and not about what somebody has
_OF_THE_SERVER = {"/metrics", "/v1/queues", "/openapi.json", "/v1/providers", "/v1/audit"}
PATIENCE = 60


class Callers:
    async def authenticate(self, token: str) -> CallerContext | None:
        who, _, tenant = token.partition("@")
        scopes = frozenset({ADMIN, *SCOPES}) if tenant != "acme" else frozenset(SCOPES) - {ADMIN}
        return CallerContext(who, tenant, scopes=scopes)


TOKENS = {"alice": "alice@acme", "alias": "alice@other", "eve": "eve@other", "new": "new@new"}


def by(who: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[who]}", "a2a-version": "1.0", **more}


def model(request: CompletionRequest) -> Any:
    """Calls the tool that its agent has, then repeats what it was told last."""
    last, tools = request.messages[-1], [tool.name for tool in request.tools]
    if tools and last.role != "tool":
        return [ToolCall("c1", tools[0], json.dumps({"query": f"{SECRET} " * 30}))]
    return f"You said {last.content}"


class Asked(NamedTuple):
    """A request of somebody else."""

    method: str
    path: str
    body: Any
    query: Mapping[str, str]


class Store(NamedTuple):
    """Everything that Alice has in the stores of one kind.

    Args:
        ids: values of path parameters, by their names.
        bodies: schemas of JSON bodies, by method and path.
        queries: names of required query parameters, by method and path.
    """

    client: TestClient
    ids: Mapping[str, tuple[str, ...]]
    bodies: Mapping[str, Any]
    queries: Mapping[str, tuple[str, ...]]

    def paths(self, route: Guarded) -> list[str]:
        """The route with everything of hers that fits into its path."""
        path = route.described
        names = re.findall(r"{(\w+)}", path)
        unknown = set(names) - self.ids.keys() - {"name", "agent_name"}
        assert not unknown, f"say in `ids` what {unknown} of {route} may be of Alice's"
        agents = ("small",) if "/workflows/" in path else ("helper",)
        values = [self.ids.get(name, agents) for name in names]
        return [path.format_map(dict(zip(names, chosen, strict=True))) for chosen in product(*values)]

    def query(self, route: Guarded) -> dict[str, str]:
        """The query parameters that a route requires; whatever they name, it is a run of hers."""
        names = self.queries.get(f"{route.method} {route.described}", ())
        return dict(zip(names, self.ids["run_id"] * len(names), strict=False))

    def body(self, route: Guarded) -> Any:
        """What the OpenAPI document says that the route takes, with everything of hers that fits."""
        schema = self.bodies.get(f"{route.method} {route.described}")
        return None if schema is None else filled(schema)

    def ask(self, who: str, asked: Asked) -> Any:
        """The answer; a server that is too busy to begin is asked again when it says."""
        headers = by(who, **{"idempotency-key": KEY})
        while True:
            answer = self.client.request(
                asked.method, asked.path, json=asked.body, params=asked.query, headers=headers
            )
            if answer.status_code != 503 or "overloaded" not in answer.text.lower():
                return answer
            time.sleep(float(answer.headers["retry-after"]))

    def snapshot(self) -> dict[str, Any]:
        """What she is shown now, by path."""
        reads = [r for r in WALKED if r.method == "GET" and r.path not in _OF_THE_SERVER]
        paths = [path for route in reads for path in self.paths(route)]
        waiting = {*self.ids["run_id"][2:3], *self.ids["task_id"][1:]}  # their events end some day
        asked = [p for p in paths if not (p.endswith("/events") and any(one in p for one in waiting))]
        required = {path: self.query(route) for route in reads for path in self.paths(route)}
        shown = {path: self.client.get(path, params=required[path], headers=by("alice")) for path in asked}
        found = {path: stable(answer.text) for path, answer in shown.items() if answer.status_code == 200}
        query = {"query": SECRET, "top_k": 50}
        passages = self.client.post("/v1/rag/notes/query", json=query, headers=by("alice"))
        return {**found, "passages": passages.json()}


#: what bodies are filled with, by the names of their properties; anything else that is required is made up
OF_A_BODY: Mapping[str, Any] = {
    "query": "x", "session_id": SESSION, "user": SESSION, "model": "helper",
    "messages": [{"role": "user", "content": "x"}], "input": 1, "decision": "approve", "rating": -1,
    "documents": [{"id": DOCUMENT, "text": "x"}], "remove": [DOCUMENT], "top_k": 50,
}  # fmt: skip


def filled(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    made_up = {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    found = {key: OF_A_BODY[key] for key in properties if key in OF_A_BODY}
    return {**{key: made_up.get(properties[key].get("type", ""), "x") for key in required}, **found}


def stable(text: str) -> Any:
    """An answer without what differs from moment to moment."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(one) for key, one in value.items() if key not in _OF_THE_MOMENT}
        return [without(one) for one in value] if isinstance(value, list) else value

    try:
        return without(json.loads(text))
    except ValueError:
        return text


# -- what Alice has ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["sqlite", "postgres", "in_memory"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """All stores of one kind; `in_memory` has files for what cannot be in memory."""
    if request.param != "postgres":
        with opened(tmp_path_factory.mktemp("stores"), request.param) as made:
            yield made
        return
    server: PostgresServer | ExternalPostgres = request.getfixturevalue("_postgres")
    name = f"test_{uuid4().hex}"
    server.execute(f"create database {name}")
    url = database_url(server.url, name)
    with opened(tmp_path_factory.mktemp("stores"), "postgres", url) as made:
        yield made
    server.execute(f"drop database {name} with (force)")


@contextmanager
def opened(folder: Path, kind: str, url: str = "") -> Iterator[Store]:
    config = written(folder / "config", kind, url)
    with TestClient(create_app(runtime_with(config, model), Auth((Callers(),)))) as client:
        yield made_by_alice(client)


def written(config: Path, kind: str, url: str) -> Path:
    passages = {"postgres": "pgvector"}.get(kind, kind)
    memory = {
        "conversational": {"backend": kind},
        "episodic": {"backend": kind},
        "semantic": {"backend": passages, "auto_index": True, "facts": "rules"},
    }
    internal = {"type": "internal", "function": "tests.integration.sample_tools:lookup"}
    pay, tell = {"name": "pay", "approval": "required"}, {"name": "tell", "max_result_tokens": 20}
    budget = {"per_session": {"tokens": 150}, "per_principal_daily": {"tokens": 150}}
    write(
        config,
        manifest("helper", memory=memory),
        manifest("payer", tools=[{**pay, **internal}]),
        manifest("teller", tools=[{**tell, **internal}]),
        manifest("seeker", tools=[{"name": "seek", "type": "rag", "pipeline": "notes"}]),
        manifest("frugal", budgets=budget),
    )
    pipeline_file(
        config,
        "notes",
        store={"backend": "pgvector" if url else "sqlite"},
        embeddings={"provider": "hashing", "dimensions": 64},
    )
    small(config)
    desk(config, f"role: decision, {CHOOSE}")
    if url:
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (config / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": url}}}))
    return config


def made_by_alice(client: TestClient) -> Store:
    def post(path: str, body: Any, **headers: str) -> dict[str, Any]:
        answer = client.post(path, json=body, headers=by("alice", **headers))
        assert answer.status_code < 300, answer.text
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    asked = {"query": SECRET, "session_id": SESSION, "metadata": {"about": SECRET}, "tags": [SECRET]}
    documents = [{"id": DOCUMENT, "text": f"# {SECRET}\n\nof Alice", "metadata": {"about": SECRET}}]
    post("/v1/rag/notes/documents", {"documents": documents})
    plain = post("/v1/agents/helper/run", asked, **{"idempotency-key": KEY})
    post("/v1/agents/helper/run", {"query": f"I live in {SECRET}.", "session_id": SESSION})
    durable = post("/v1/agents/helper/runs", asked)["run_id"]
    waiting = post("/v1/agents/payer/runs", asked)["run_id"]
    told = post("/v1/agents/teller/runs", asked)["run_id"]
    done = post("/v1/workflows/small/runs", {"input": SECRET})["task_id"]
    held = post("/v1/workflows/desk/runs", {"input": {"item": SECRET}})["task_id"]
    for path, status in (
        (f"/v1/runs/{durable}", "completed"), (f"/v1/runs/{waiting}", "waiting"),
        (f"/v1/runs/{told}", "completed"), (f"/v1/tasks/{done}", "success"),
    ):  # fmt: skip
        until(client, path, status)
    end = time.monotonic() + PATIENCE
    while len(client.get("/v1/approvals", headers=by("alice")).json()["approvals"]) < 2:  # of run and Task
        assert time.monotonic() < end
        time.sleep(0.01)
    while not (facts := client.get("/v1/principals/alice/facts", headers=by("alice")).json()["facts"]):
        assert time.monotonic() < end
        time.sleep(0.01)
    fact = facts[0]["id"]
    post(f"/v1/runs/{durable}/feedback", {"rating": 1, "comment": SECRET})
    yearly = {"agent": "helper", "query": SECRET, "cron": "0 0 29 2 *"}
    ids = {
        "run_id": (plain["run_id"], durable, waiting, told),
        "response_id": (post("/v1/responses", {"model": "helper", "input": SECRET})["id"],),
        "task_id": (done, held),
        "trace_id": (plain["metadata"]["trace_id"],),
        "session_id": (SESSION,),
        "principal": ("alice",),
        "fact": (fact,),
        "result_id": ("c1",),
        "step": ("1",),
        "config": ("none",),  # of push notifications, which need a secret, too
        "pipeline": ("notes",),
        "document": (DOCUMENT,),
        "schedule_id": (post("/v1/schedules", yearly)["id"],),
        "key_id": ("none",),  # this server has no keys
        "id": ("1",),  # callbacks need a secret, which this server has not
        "channel": ("none",),
        "evaluation_id": ("none",),  # reports are the operator's
    }
    description = client.get("/openapi.json", headers=by("alice")).json()
    return Store(client, ids, bodies_of(description), required_queries(description))


def until(client: TestClient, path: str, status: str) -> None:
    end = time.monotonic() + PATIENCE
    while (found := client.get(path, headers=by("alice")).json()["status"]) != status:
        assert time.monotonic() < end, f"{path} is {found} and not {status}"
        time.sleep(0.01)


def bodies_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of JSON bodies, by method and path."""
    found = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if schema := content.get("schema"):
                name = schema.get("$ref", "").rpartition("/")[2]
                found[f"{method.upper()} {path}"] = (
                    description["components"]["schemas"][name] if name else schema
                )
    return found


def required_queries(description: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {
        f"{method.upper()} {path}": tuple(
            one["name"] for one in operation.get("parameters", ()) if one["in"] == "query" and one["required"]
        )
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    }


# -- the walk ------------------------------------------------------------------------------------------------


def test_alice_is_shown_all_of_it(store: Store) -> None:
    """Else the walk would prove nothing: what the others are not shown is there, route by route."""
    shown = {path: json.dumps(one) for path, one in store.snapshot().items()}
    has_it = {path for path, text in shown.items() if SECRET in text}
    plain, durable, _, told = store.ids["run_id"]
    done, held = store.ids["task_id"]
    assert has_it >= {
        "/v1/runs", f"/v1/runs/{plain}", f"/v1/runs/{durable}/events",
        f"/v1/runs/{told}/results/c1", "/v1/approvals", f"/v1/agents/helper/sessions/{SESSION}",
        "/v1/principals/alice/data", "/v1/principals/alice/facts", f"/v1/tasks/{done}", f"/v1/tasks/{held}",
        f"/v1/tasks/{done}/trace",
        "/v1/rag/notes/documents", f"/v1/rag/notes/documents/{DOCUMENT}", "passages",
    }  # fmt: skip
    text = "".join(shown.values())
    owned = [own for name, ids in store.ids.items() if name != "id" for own in ids]
    assert [own for own in owned if own not in text and own != "none"] == []
    assert store.snapshot() == store.snapshot()


@pytest.mark.parametrize("who", OTHERS)
def test_another_tenant_is_shown_nothing_and_changes_nothing(store: Store, who: str) -> None:
    """Every route, with ids, names, keys and sessions of Alice; the reads come last, behind every change."""
    before = store.snapshot()
    ids = {*store.ids["run_id"], *store.ids["task_id"], *store.ids["trace_id"]}
    for is_read in (False, True):
        asked = [
            Asked(route.method, path, store.body(route), {**query, **store.query(route)})
            for route in WALKED
            if (route.method == "GET") is is_read
            for path in store.paths(route)
            for query in ({}, {"principal": "alice", "session": SESSION, "agent": "helper", "tag": SECRET})
        ]
        with ThreadPoolExecutor(128) as pool:
            answers = list(pool.map(partial(store.ask, who), asked))
        for one, answer in zip(asked, answers, strict=True):
            told = f"{one.method} {one.path} {one.query}: {answer.status_code} {answer.text[:500]}"
            assert answer.status_code < 500, told
            assert SECRET not in answer.text, told
            if answer.status_code < 400 and one.path != "/v1/audit":  # which has what the caller asked for
                assert [own for own in ids if own in answer.text.replace(one.path, "")] == [], told
        after = store.snapshot()
        assert {path: shown for path, shown in after.items() if before.get(path) != shown} == {}
        assert before.keys() == after.keys()


def test_sockets_neither_resume_nor_cancel_a_run_of_another_tenant(store: Store) -> None:
    before, asked = store.snapshot(), ({"type": "resume", "after": 0}, {"type": "cancel"})
    frames = [{**one, "run_id": run_id} for one in asked for run_id in store.ids["run_id"][1:3]]

    def answer_to(frame: Any) -> Any:
        with store.client.websocket_connect("/v1/ws/agent/helper", headers=by("eve")) as socket:
            socket.send_json(frame)
            return socket.receive_json()

    with ThreadPoolExecutor(len(frames)) as pool:
        for answer in pool.map(answer_to, frames):
            assert answer["type"] == "error" and SECRET not in json.dumps(answer)
    assert store.snapshot() == before


@pytest.mark.parametrize("who", OTHERS)
def test_runs_of_another_tenant_find_nothing_of_hers(store: Store, who: str) -> None:
    """Neither in memory of any kind, nor in knowledge, nor as the answer to her key."""
    for agent in ("helper", "seeker"):
        body = {"query": "Who was here?", "session_id": SESSION}
        answer = store.client.post(f"/v1/agents/{agent}/run", json=body, headers=by(who))
        assert answer.status_code == 200
        run_id = answer.json()["run_id"]
        events = store.client.get(f"/v1/runs/{run_id}/events", headers=by(who)).text
        assert SECRET not in (answer.text + events).replace(f"{SECRET} " * 30, "").replace(SECRET + '"', "")


@pytest.mark.parametrize("who", OTHERS)
def test_a_budget_that_she_has_spent_is_hers_alone(store: Store, who: str) -> None:
    """That of the session, and that of the day."""
    body = {"query": "Spend it. " * 20, "session_id": SESSION}
    path = "/v1/agents/frugal/run"
    end = time.monotonic() + PATIENCE
    while store.client.post(path, json=body, headers=by("alice")).status_code != 429:
        assert time.monotonic() < end
    assert store.client.post(path, json=body, headers=by(who)).status_code == 200
    assert store.client.post(path, json=body, headers=by("alice")).status_code == 429


def test_a_new_tenant_has_nothing(store: Store) -> None:
    """Its statistics, lists and exports are empty, whatever others have done."""
    counted = store.client.get("/v1/statistics", headers=by("new")).json()
    assert not any(counted["today"].values())
    assert not any(part.get("runs") for part in counted["minutes"])
    for path, key in (
        ("/v1/runs", "runs"), ("/v1/tasks", "tasks"), ("/v1/traces", "traces"),
        ("/v1/approvals", "approvals"),
        ("/v1/agents/helper/sessions", "sessions"), ("/v1/rag/notes/documents", "documents"),
    ):  # fmt: skip
        assert store.client.get(path, headers=by("new")).json()[key] == [], path
