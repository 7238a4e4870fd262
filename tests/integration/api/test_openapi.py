"""`GET /openapi.json` keeps no run waiting, and is made once."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import orjson
import pytest
from fastapi import FastAPI
from starlette.datastructures import State

from astromesh.api.auth import Auth
from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.api.openapi import OPERATION_IDS
from astromesh.api.routes import pages
from tests.integration.agents_folder import client_of, manifest, write
from tests.integration.api.test_route_scopes import EVERY, OF_CALLERS
from tests.integration.workflow.folders import runtime_with, small


class Slow(FastAPI):
    """Routes whose description is made when it may be; the first `fails` times there is no memory for it."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__(openapi_url=None)
        self.state = State({"auth": Auth()})
        self.router.routes.extend(pages.router.routes)
        self.begun, self.may, self.made, self.fails = threading.Event(), threading.Event(), 0, fails

    def openapi(self) -> dict[str, Any]:
        self.begun.set()
        assert self.may.wait(30)
        self.made += 1
        if self.made <= self.fails:
            raise MemoryError
        return {"openapi": "3.1.0"}


def client(app: FastAPI) -> httpx.AsyncClient:
    wire = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=wire, base_url="http://localhost")


async def test_the_loop_goes_on_while_it_is_made_once_for_all_who_ask() -> None:
    app = Slow()
    async with client(app) as http:
        left = asyncio.create_task(http.get("/openapi.json"))
        assert await asyncio.to_thread(app.begun.wait, 30)
        left.cancel()
        asked = [asyncio.create_task(http.get("/openapi.json")) for _ in range(3)]
        await asyncio.sleep(0)
        app.may.set()  # this loop is free to say so
        answers = [*await asyncio.gather(*asked), await http.get("/openapi.json")]
    assert [orjson.loads(answer.content) for answer in answers] == [{"openapi": "3.1.0"}] * 4
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
    assert app.made == 1


async def test_one_that_failed_is_made_again() -> None:
    app = Slow(fails=1)
    app.may.set()
    async with client(app) as http:
        statuses = [(await http.get("/openapi.json")).status_code for _ in range(3)]
    assert (statuses, app.made) == ([500, 200, 200], 2)


# -- what it says ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return create_fastapi_app(State()).openapi()


def operations(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from [node["$ref"]] if "$ref" in node else []
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from references(one)


def test_every_operation_has_a_name_that_stays(described: dict[str, Any]) -> None:
    """Clients make functions of them. The table holds those of today, each once, and no others."""
    found = {key: operation["operationId"] for key, operation in operations(described)}
    assert found == dict(OPERATION_IDS)
    assert len(set(found.values())) == len(found)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", name) for name in found.values())


def test_every_error_is_the_one_problem(described: dict[str, Any]) -> None:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for key, operation in operations(described):
        for status, response in operation["responses"].items():
            if key == "GET /health/ready" and status == "503":  # it says what is not ready
                continue
            if status == "default" or int(status) >= 400:
                assert response["content"] == problem, (key, status)
        assert "default" in operation["responses"], key
    assert not {"HTTPValidationError", "ValidationError"} & described["components"]["schemas"].keys()


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    for reference in references(described):
        node = described
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_paths_of_other_specifications_are_named_with_them(described: dict[str, Any]) -> None:
    protocols = described["x-protocols"]
    a2a, mcp = (protocols[name]["paths"] for name in ("a2a", "mcp"))
    assert a2a["/v1/agents/{name}/a2a"] == {"post": {"scopes": ["agents:run"]}}
    assert a2a["/v1/agents/{name}/a2a/tasks/{run_id}"] == {"get": {"scopes": ["agents:run"]}}
    assert mcp["/mcp"] == {"post": {"scopes": ["agents:run"]}}
    assert not {*a2a, *mcp} & described["paths"].keys()


def test_operations_say_which_scope_they_need(described: dict[str, Any]) -> None:
    """As the routes check it; what needs one may be 401 and 403."""
    schemes = described["components"]["securitySchemes"].keys()
    guarded = {f"{route.method} {route.described}": route.scope for route in EVERY if route.method != "WS"}
    for key, operation in operations(described):
        ways = [way for way in operation["security"] if way]
        needed = {scope for way in ways for scopes in way.values() for scope in scopes}
        assert needed == ({guarded[key]} if guarded[key] else set()), key
        is_guarded = needed or key == f"GET {OF_CALLERS}"
        assert {name for way in ways for name in way} == (set(schemes) if is_guarded else set()), key
        assert {"401", "403"} <= operation["responses"].keys() or not needed, key
    metrics = described["paths"]["/metrics"]["get"]
    assert {} in metrics["security"]  # programs on this machine need no key


def test_text_is_text_and_events_are_events(described: dict[str, Any]) -> None:
    answers = {
        key: set(operation["responses"].get("200", {}).get("content", {}))
        for key, operation in operations(described)
    }
    assert answers["GET /metrics"] == {"text/plain"}
    assert answers["GET /v1/runs/{run_id}/events"] == {"text/event-stream"}
    assert answers["POST /v1/agents/{name}/run"] == {"application/json", "text/event-stream"}
    assert answers["POST /v1/chat/completions"] == {"application/json", "text/event-stream"}


def test_every_body_and_every_answer_has_a_schema_with_a_name(described: dict[str, Any]) -> None:
    """JSON is a component, an event stream one with the schema of its events, and text a string."""
    schemas = described["components"]["schemas"]
    for key, operation in operations(described):
        contents = [(key, operation["requestBody"]["content"])] if "requestBody" in operation else []
        answers = {status: one for status, one in operation["responses"].items() if status < "300"}
        assert answers, key
        for status, response in answers.items():
            assert ("content" in response) is (status != "204"), (key, status)
            contents.append((f"{key} {status}", response.get("content", {})))
        for place, content in contents:
            for media, described_as in content.items():
                schema = described_as["schema"]
                if media not in ("application/json", "text/event-stream"):
                    assert schema["type"] == "string", (place, media)
                    continue
                assert schema.keys() == {"$ref"}, (place, media)
                component = schemas[schema["$ref"].rpartition("/")[2]]
                if media == "text/event-stream":
                    data = component["properties"]["data"]
                    assert data["contentMediaType"] == "application/json", place
                    assert list(references(data["contentSchema"])), place


def test_every_operation_says_what_it_is(described: dict[str, Any]) -> None:
    groups = {tag["name"] for tag in described["tags"]}
    for key, operation in operations(described):
        assert operation["summary"] and operation["description"].endswith("."), key
        assert operation["tags"] and set(operation["tags"]) <= groups, key


def test_every_list_has_pages_and_says_how_it_is_sorted(described: dict[str, Any]) -> None:
    """`list_models` has the form of OpenAI's protocol, which has no pages."""
    lists = {key: one for key, one in operations(described) if one["operationId"].startswith("list_")}
    assert len(lists) > 10
    for key, operation in lists.items():
        if operation["operationId"] == "list_models":
            continue
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert {"after", "limit"} <= names, key
        (answer,) = operation["responses"]["200"]["content"].values()
        schema = described["components"]["schemas"][answer["schema"]["$ref"].rpartition("/")[2]]
        assert {"next", "has_more"} & set(schema["required"]), key
        assert re.search(r"newest|oldest|\bby \w|in (the )?order", operation["description"]), key


def test_pages_are_not_in_it(described: dict[str, Any]) -> None:
    assert not {"/", "/docs", "/openapi.json", "/health", "/console"} & described["paths"].keys()


# -- what it says is what is answered ----------------------------------------------------------------------

READS = (
    "/v1/agents", "/v1/agents/{name}", "/v1/tools", "/v1/providers", "/v1/workflows", "/v1/traces",
    "/v1/traces/{trace_id}", "/v1/models", "/v1/models/{name}", "/v1/runs", "/v1/runs/{run_id}",
    "/v1/approvals", "/v1/agents/{name}/sessions", "/v1/tasks/{task_id}", "/v1/audit", "/v1/statistics",
    "/health/live", "/health/ready",
)  # fmt: skip


async def test_answers_have_the_form_that_is_described(tmp_path: Path, described: dict[str, Any]) -> None:
    """Of an agent that is sound, one that is broken, a run, a Task, and what is not there."""
    tools = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
    memory = {"conversational": {"backend": "in_memory"}}
    write(tmp_path, manifest("helper", tools=tools, memory=memory), manifest("broken", patern="x"))
    async with client_of(runtime_with(small(tmp_path), "ok")) as http:
        run = (await http.post("/v1/agents/helper/run", json={"query": "q", "session_id": "s"})).json()
        task = (await http.post("/v1/workflows/small/run", json={"input": 1})).json()
        named = {"name": "helper", "run_id": run["run_id"], "task_id": task["task_id"]}
        named["trace_id"] = run["metadata"]["trace_id"]
        for path in READS:
            answer = await http.get(path.format_map(named))
            assert answer.status_code == 200, path
            require_form(described, described["paths"][path]["get"], answer)
        for path in ("/v1/agents/none", "/v1/runs/none", "/v1/traces/none", "/v1/runs?limit=0"):
            answer = await http.get(path)
            route = path.partition("?")[0].replace("none", "{%s}")
            (operation,) = (
                methods["get"]
                for key, methods in described["paths"].items()
                if re.fullmatch(re.escape(route).replace(re.escape("{%s}"), r"\{\w+\}"), key)
            )
            require_form(described, operation, answer)
        broken = await http.get("/v1/agents/broken")
        require_form(described, described["paths"]["/v1/agents/{name}"]["get"], broken)


def require_form(described: dict[str, Any], operation: dict[str, Any], answer: httpx.Response) -> None:
    """The status, the media type and the body of an answer are among those of its operation."""
    content = operation["responses"][str(answer.status_code)]["content"]
    schema = content[answer.headers["content-type"].partition(";")[0]]["schema"]
    whole = {**schema, "components": described["components"]}
    jsonschema_rs.validator_for(whole).validate(answer.json())
    assert "$ref" in schema, operation["operationId"]
