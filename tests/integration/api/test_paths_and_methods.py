"""What every path answers: where things are, its methods, the id of a request, a body that is no text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from astromesh.api.app import create_app
from astromesh.api.middleware.limits import MAX_TARGET_BYTES
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import manifest, runtime_of, served, write

A2A = "/v1/agents/helper/a2a"
NOT_UTF_8 = b'{"decision": "approve\xff"}'
KEYS = """
apiVersion: astromesh/v1
kind: RuntimeConfig
metadata: {name: runtime}
spec:
  auth: {mode: api_key}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = write(tmp_path_factory.mktemp("config"), manifest())
    runtime = runtime_of(folder, ScriptedProvider("ok", repeat=True))
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server that wants keys."""
    folder = write(tmp_path_factory.mktemp("config"), manifest())
    (folder / "runtime.yaml").write_text(KEYS)
    with TestClient(create_app(runtime_of(folder, ScriptedProvider()))) as client:
        yield client


# -- where things are --------------------------------------------------------------------------------------


def test_the_root_names_paths_that_exist_and_no_others(client: TestClient) -> None:
    body = client.get("/").json()
    assert body["name"] == "astromesh"
    for name, path in body["links"].items():
        allowed = client.options(path).headers["allow"]
        assert ("POST" if name == "mcp" else "GET") in allowed


def test_root_and_health_are_public(locked: TestClient) -> None:
    assert locked.get("/v1/agents").status_code == 401
    assert locked.get("/").status_code == 200
    assert locked.get("/health").json() == locked.get("/health/live").json()


# -- methods -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/agents/helper/sessions/s", "DELETE, GET, HEAD, OPTIONS"),
        ("/v1/agents/helper/run", "OPTIONS, POST"),
        ("/health/live", "GET, HEAD, OPTIONS"),
        ("/v1/responses/compact", "OPTIONS, POST"),
        ("/v1/responses/resp_1", "DELETE, GET, HEAD, OPTIONS"),
        ("/v1/principals/me/data", "DELETE, GET, HEAD, OPTIONS"),
        (A2A, "OPTIONS, POST"),
        (f"{A2A}/message:send", "OPTIONS, POST"),
        (f"{A2A}/tasks", "GET, HEAD, OPTIONS"),
        (f"{A2A}/tasks/x", "GET, HEAD, OPTIONS"),
        (f"{A2A}/tasks/x:cancel", "OPTIONS, POST"),
        (f"{A2A}/tasks/x/pushNotificationConfigs/y", "DELETE, GET, HEAD, OPTIONS"),
        (f"{A2A}/.well-known/agent-card.json", "GET, HEAD, OPTIONS"),
    ],
)
def test_options_and_a_wrong_method_name_all_methods_of_a_path(
    client: TestClient, path: str, methods: str
) -> None:
    options = client.options(path)
    assert (options.status_code, options.headers["allow"], options.content) == (204, methods, b"")
    for method in {"PATCH", "PUT", "GET", "HEAD", "POST", "DELETE"} - {*methods.split(", ")}:
        wrong = client.request(method, path)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, methods), method
    wrong = client.patch(path)
    assert "method_not_allowed" in wrong.text.lower()
    assert f"accepts {methods}" in wrong.text


@pytest.mark.parametrize("path", ["/v1/agents", "/health/live", "/openapi.json", "/v1/agents/none", "/"])
def test_head_is_get_without_a_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    names = ("content-type", "content-length")
    assert [head.headers[name] for name in names] == [get.headers[name] for name in names]


async def test_head_of_a_stream_ends_behind_the_head(tmp_path: Path) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def waits(_: CompletionRequest) -> str:
        started.set()
        await go_on.wait()
        return "ok"

    provider = ScriptedProvider(waits)
    async with (
        served(runtime_of(write(tmp_path, manifest()), provider)) as at,
        httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as http,
    ):
        accepted = await http.post("/v1/agents/helper/runs", json={"query": "q", "session_id": "s"})
        await started.wait()
        head = await http.head(f"/v1/runs/{accepted.json()['run_id']}/events")
        go_on.set()
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")


def test_a_path_that_is_none_has_no_methods(client: TestClient) -> None:
    assert client.options("/v1/nothing").status_code == 404


def test_methods_are_named_without_a_key(locked: TestClient) -> None:
    assert locked.options("/v1/agents").headers["allow"] == "GET, HEAD, OPTIONS"


# -- paths that are too long -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [MAX_TARGET_BYTES, 6 * MAX_TARGET_BYTES])
async def test_a_path_that_is_too_long_is_414_over_the_wire(tmp_path: Any, length: int) -> None:
    """The longer one is refused before its line has an end."""
    async with (
        served(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as at,
        httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client,
    ):
        answer = await client.get("/v1/agents/" + "x" * length)
    assert (answer.status_code, answer.json()["code"]) == (414, "uri_too_long")
    assert answer.headers["x-request-id"]


# -- bodies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/agents/helper/run",
        "/v1/agents/helper/runs",
        "/v1/runs/run_1/resume",
        "/v1/runs/run_1/feedback",
        "/v1/workflows/none/run",
        "/v1/tasks/none/pause",
        "/v1/rag/none/query",
        "/v1/rag/none/documents",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/agents/helper/agui",
        "/v1/channels/whatsapp/webhook",
    ],
)
def test_a_body_that_is_not_utf_8_is_422_and_says_so(client: TestClient, path: str) -> None:
    answer = client.post(path, content=NOT_UTF_8, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert "UTF-8" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/agents/helper/run", "/v1/agents/helper/runs"])
@pytest.mark.parametrize("body", [{"query": "Hello"}, {}])
def test_a_body_without_a_session_is_told_one_that_works(client: TestClient, path: str, body: Any) -> None:
    refused = client.post(path, json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    said, _, example = refused.json()["detail"].partition(" This body works: ")
    assert "session_id: it is required" in said
    accepted = client.post(path, content=example, headers={"content-type": "application/json"})
    assert accepted.status_code in (200, 202)


def test_a_wrong_value_is_told_without_an_example(client: TestClient) -> None:
    refused = client.post("/v1/agents/helper/run", json={"query": "Hello", "session_id": ""})
    assert "This body works" not in refused.json()["detail"]


# -- ids of requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/health/live", "/v1/agents", "/v1/nothing", "/v1/agents/helper/run", "/" + "x" * 9000]
)
def test_every_answer_has_the_id_of_its_request(client: TestClient, path: str) -> None:
    first, second = client.get(path), client.get(path)
    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_the_refusal_of_a_websocket_has_an_id_too(locked: TestClient) -> None:
    with pytest.raises(WebSocketDenialResponse) as denied:
        locked.websocket_connect("/v1/ws/agent/helper", headers={"x-request-id": "mine"}).__enter__()
    assert (denied.value.status_code, denied.value.headers["x-request-id"]) == (401, "mine")
    assert denied.value.headers["x-content-type-options"] == "nosniff"


def test_the_handshake_of_a_socket_has_the_id_of_its_request(client: TestClient) -> None:
    with client.websocket_connect("/v1/ws/agent/helper", headers={"x-request-id": "mine"}) as socket:
        headers: Any = socket.extra_headers  # without a type of their own
    assert dict(headers)[b"x-request-id"] == b"mine"


def test_a_client_may_choose_the_id_but_nothing_that_is_none(client: TestClient) -> None:
    def answered(given: bytes) -> str:
        return client.get("/health/live", headers={b"x-request-id": given}).headers["x-request-id"]

    assert answered(b"trace-7.a") == "trace-7.a"
    for strange in (b"", b"a b", b"x" * 129, b"\xff"):
        assert answered(strange).startswith("req_")
