"""What one request, or many at once, may cost: every bound has a clear error (reliability.md S8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from astromesh.api.app import create_app
from astromesh.api.auth import Auth, FallbackCallLimit, LocalCallLimit
from astromesh.api.middleware.limits import (
    DEFAULT_LIMITS,
    MAX_DEPTH,
    MAX_HEADER_BYTES,
    MAX_TARGET_BYTES,
    ConcurrencyLimits,
    json_fault,
)
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.tools.base import RateLimit
from astromesh.types import CallerContext, CompletionRequest
from tests.integration.agents_folder import manifest, runtime_of, served, write

RUN = "/v1/agents/helper/run"
BODY = {"query": "Hello", "session_id": "s"}
SOCKET = "/v1/ws/agent/helper"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = write(tmp_path_factory.mktemp("config"), manifest())
    runtime = runtime_of(folder, ScriptedProvider("ok", repeat=True))
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# -- the size of one ---------------------------------------------------------------------------------------


def test_a_long_query_string_or_path_is_414_and_says_how_much_is_taken(client: TestClient) -> None:
    for path in (f"/v1/runs?agent={'x' * MAX_TARGET_BYTES}", "/v1/agents/" + "x" * MAX_TARGET_BYTES):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (414, "uri_too_long")
        assert str(MAX_TARGET_BYTES) in answer.json()["detail"]
    assert client.get(f"/v1/runs?agent={'x' * (MAX_TARGET_BYTES - 100)}").status_code == 200


def test_large_headers_are_413_and_say_how_much_is_taken(client: TestClient) -> None:
    answer = client.get("/v1/runs", headers={"x-long": "x" * MAX_HEADER_BYTES})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert str(MAX_HEADER_BYTES) in answer.json()["detail"]
    with pytest.raises(WebSocketDenialResponse) as denied:
        client.websocket_connect(SOCKET, headers={"x-long": "x" * MAX_HEADER_BYTES}).__enter__()
    assert denied.value.status_code == 413


@pytest.mark.parametrize("levels", [MAX_DEPTH, 250, 1000, 100_000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RUN, {**BODY, "context": {}}),
        ("/v1/agents/helper/runs", {**BODY, "metadata": {}}),
        ("/v1/chat/completions", {"model": "helper", "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/rag/none/documents", {"documents": [{"id": "a", "text": "b", "metadata": {}}]}),
        ("/v1/runs/r/resume", {"decision": "approve", "arguments": {}}),
    ],
)
def test_json_that_nests_too_deep_is_422_on_every_route(
    client: TestClient, path: str, body: dict[str, Any], levels: int
) -> None:
    deep = orjson.dumps({**body, "extra": None}).replace(b"null", b"[" * levels + b"]" * levels)
    answer = client.post(path, content=deep, headers={"content-type": "application/json"})
    assert answer.status_code == (400 if path == "/v1/chat/completions" else 422)
    assert f"{MAX_DEPTH} levels" in answer.json()["detail"]


def test_an_integer_that_would_be_rounded_is_422(client: TestClient) -> None:
    """JSON libraries make a float of it: what is stored would not be found by what was sent."""
    json = {"content-type": "application/json"}
    for number, status in (
        (2**64, 422),
        (-(2**63) - 1, 422),
        ("9" * 5000, 422),
        (2**64 - 1, 200),
        (1e30, 200),
    ):
        body = orjson.dumps({**BODY, "metadata": {"n": 1}}).replace(
            b'"n":1', b'"n":%s' % str(number).encode()
        )
        answer = client.post(RUN, content=body, headers=json)
        assert answer.status_code == status, answer.text
    assert "Send it as text" in client.post(RUN, content=b'{"n": 123456789012345678901}').json()["detail"]
    assert client.post(RUN, json={**BODY, "metadata": {"n": str(2**70)}}).status_code == 200
    with client.websocket_connect(SOCKET) as socket:
        socket.send_text('{"type": "ping", "n": 123456789012345678901}')
        assert socket.receive_json()["code"] == "invalid_input"


@pytest.mark.parametrize("levels", [MAX_DEPTH - 3, MAX_DEPTH - 2])
def test_json_up_to_the_bound_is_run_and_kept(client: TestClient, levels: int) -> None:
    body = {**BODY, "context": {"deep": nested(levels)}, "metadata": {"deep": nested(levels)}}
    assert client.post(RUN, json=body).status_code == 200
    assert client.post("/v1/agents/helper/runs", json=body).status_code == 202


def test_depth_is_what_counts_not_how_many_lists_there_are() -> None:
    assert not json_fault(orjson.dumps([[]] * 100_000))
    assert not json_fault(orjson.dumps(nested(MAX_DEPTH)))
    assert json_fault(orjson.dumps(nested(MAX_DEPTH + 1)))
    assert not json_fault(b'{"text": "' + b"[" * 1000 + b'"}')
    assert not json_fault(b"[" * 1000 + b"no JSON")


def test_a_frame_that_nests_too_deep_is_told_and_the_socket_lives(client: TestClient) -> None:
    with client.websocket_connect(SOCKET) as socket:
        for levels in (200, 2000):
            deep = orjson.dumps({**BODY, "context": {"deep": 1}}).replace(b"1", b"[" * levels + b"]" * levels)
            socket.send_text(deep.decode())
            frame = socket.receive_json()
            assert (frame["code"], str(MAX_DEPTH) in frame["detail"]) == ("invalid_input", True)
        socket.send_json({"type": "ping"})
        assert socket.receive_json() == {"type": "pong"}


def test_a_body_of_a_length_that_is_no_number_is_413(client: TestClient) -> None:
    for length in ("-1", "1e3", "9" * 40):
        answer = client.post(RUN, content=b"{}", headers={"content-length": length})
        assert answer.status_code == 413


# -- what the parser keeps to itself -----------------------------------------------------------------------

HEAD = b"POST /v1/agents/helper/run HTTP/1.1\r\nhost: h\r\n"
ENDLESS = {
    "a request line": b"GET /",
    "a header": b"GET / HTTP/1.1\r\nhost: h\r\nx-long: ",
    "a header's name": b"GET / HTTP/1.1\r\nhost: h\r\nx",
    "chunk extensions": HEAD + b"transfer-encoding: chunked\r\n\r\n1;x=",
    "trailers": HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx-trailer: ",
}


@pytest.mark.parametrize("start", ENDLESS.values(), ids=ENDLESS)
async def test_a_head_without_an_end_is_cut_off(tmp_path: Path, start: bytes) -> None:
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok"))
    async with served(runtime) as address, asyncio.timeout(30):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(start)
        sent = 0
        try:
            while not reader.at_eof() and sent < 50_000_000:
                writer.write(b"x" * 16_384)
                await writer.drain()
                sent += 16_384
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()
        assert sent < 50_000_000


async def test_many_small_headers_are_cut_off_too(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok"))
    async with served(runtime) as address, asyncio.timeout(30):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: h\r\n" + b"a: b\r\n" * 10_000)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"payload_too_large" in answer


# -- how many at once --------------------------------------------------------------------------------------


class Gate:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.waiting, self.open = asyncio.Semaphore(0), asyncio.Event()

    async def __call__(self, _: CompletionRequest) -> str:
        self.waiting.release()
        await self.open.wait()
        return "done"


@asynccontextmanager
async def crowded(
    folder: Path, room: ConcurrencyLimits, auth: Auth | None = None
) -> AsyncIterator[tuple[Any, Gate]]:
    gate = Gate()
    app = create_app(runtime_of(folder, ScriptedProvider(gate, repeat=True)), auth, limits=room)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client,
    ):
        yield client, gate


async def test_more_requests_than_there_is_room_for_are_503_at_once_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with crowded(write(tmp_path, manifest()), ConcurrencyLimits(requests=3)) as (client, gate):
        running = [
            asyncio.create_task(client.post(RUN, json={**BODY, "session_id": f"s{i}"})) for i in range(3)
        ]
        for _ in running:
            await gate.waiting.acquire()
        refused = await client.get("/v1/agents")
        alive = await client.get("/health/live")
        gate.open.set()
        answers = await asyncio.gather(*running)
        again = await client.get("/v1/agents")
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert "spec.api.max_requests" in refused.json()["detail"]
    assert [alive.status_code, again.status_code, *(a.status_code for a in answers)] == [200] * 5


async def test_a_noisy_tenant_leaves_room_for_the_others(tmp_path: Path) -> None:
    """While half of the room is in use, each tenant of the last minute has an equal share."""

    class ByName:
        async def authenticate(self, token: str) -> CallerContext:
            return CallerContext("ann", token, scopes=frozenset({"admin"}))

    room, auth = ConcurrencyLimits(requests=8), Auth((ByName(),))
    async with crowded(write(tmp_path, manifest()), room, auth) as (client, gate):

        def post(tenant: str, session: str) -> asyncio.Task[httpx.Response]:
            headers = {"authorization": f"Bearer {tenant}"}
            body = {**BODY, "session_id": session}
            return asyncio.create_task(client.post(RUN, json=body, headers=headers))

        alone = [post("noisy", f"n{n}") for n in range(4)]
        for _ in alone:
            await gate.waiting.acquire()
        quiet = [post("quiet", "q0")]
        await gate.waiting.acquire()
        refused = await post("noisy", "n4")
        quiet.append(post("quiet", "q1"))
        await gate.waiting.acquire()
        flood = [post("noisy", f"f{n}") for n in range(40)]
        flood.append(post("quiet", "q2"))  # there is room for two more
        await gate.waiting.acquire()
        gate.open.set()
        answers = await asyncio.gather(*alone, *quiet, flood.pop())
        again = await post("noisy", "n4")
        assert {answer.status_code for answer in await asyncio.gather(*flood)} == {503}
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert "share" in refused.json()["detail"]
    assert [answer.status_code for answer in (*answers, again)] == [200] * 8


async def test_a_rate_limit_over_postgres_counts_the_calls_of_all_processes(
    tmp_path: Path, postgres_database: str
) -> None:
    """However many come at once to each of them; another principal has its own."""
    options: dict[str, Any] = {"max_calls": 5, "window_seconds": 86_400.0}
    many = [Deps(storage_url=postgres_database) for _ in range(2)]
    limits = [await Plugins().open("call_limits", "postgres", options, deps) for deps in many]
    first = [await limit.take(("acme", "ann")) for limit in limits]
    rest = await asyncio.gather(*(limit.take(("acme", "ann")) for limit in limits for _ in range(20)))
    other = await limits[0].take(("acme", "bob"))
    for deps in many:
        await deps.resources.close()
    local = LocalCallLimit(RateLimit(**options), ManualClock())
    late = await FallbackCallLimit(limits[0], local).take(("acme", "ann"))  # the database is away
    assert [state.wait for state in first] == [0.0, 0.0]
    assert sum(state.wait == 0.0 for state in rest) == 3
    refused = next(state for state in rest if state.wait > 0.0)
    assert refused.left == 0
    assert 0.0 < refused.wait <= 2 * 86_400
    assert (other.wait, late.wait) == (0.0, 0.0)


def test_more_sockets_than_there_is_room_for_are_503(tmp_path: Path) -> None:
    app = create_app(
        runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok")), limits=ConcurrencyLimits(sockets=1)
    )
    with TestClient(app) as client:
        with client.websocket_connect(SOCKET), pytest.raises(WebSocketDenialResponse) as denied:
            client.websocket_connect(SOCKET).__enter__()
        assert denied.value.status_code == 503
        assert "retry-after" in denied.value.headers
        with client.websocket_connect(SOCKET) as socket:  # the first one has gone
            socket.send_json({"type": "ping"})
            assert socket.receive_json() == {"type": "pong"}


async def test_a_principal_that_calls_too_often_is_429_and_comes_in_again_later(tmp_path: Path) -> None:
    clock = ManualClock()
    auth = Auth(calls=LocalCallLimit(RateLimit(2, 60.0), clock))
    async with crowded(write(tmp_path, manifest()), DEFAULT_LIMITS, auth) as (client, _):
        answers = [await client.get("/v1/agents") for _ in range(3)]
        live = await client.get("/health/live")
        clock.advance(60.0)
        later = await client.get("/v1/agents")
    assert [a.status_code for a in (*answers, live, later)] == [200, 200, 429, 200, 200]
    assert answers[-1].json()["code"] == "rate_limited"
    assert answers[-1].headers["retry-after"] == "60"
    names = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
    said = [tuple(answer.headers.get(name) for name in names) for answer in (*answers, live, later)]
    assert said == [("2", "1", "60"), ("2", "0", "60"), ("2", "0", "60"), (None,) * 3, ("2", "1", "60")]


def test_runs_on_a_socket_count_as_calls(tmp_path: Path) -> None:
    auth = Auth(calls=LocalCallLimit(RateLimit(2, 60.0), ManualClock()))
    provider = ScriptedProvider("ok", repeat=True)
    with (
        TestClient(create_app(runtime_of(write(tmp_path, manifest()), provider), auth)) as client,
        client.websocket_connect(SOCKET) as socket,
    ):
        socket.send_json(BODY)
        while socket.receive_json()["type"] != "done":
            pass
        socket.send_json(BODY)
        assert socket.receive_json()["code"] == "rate_limited"


def test_the_configuration_sets_room_and_rate(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest())
    (folder / "runtime.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: RuntimeConfig\n"
        "spec: {api: {rate_limit: {max_calls: 1, window_seconds: 30}}}\n"
    )
    with TestClient(create_app(runtime_of(folder, ScriptedProvider("ok")))) as client:
        assert [client.get("/v1/agents").status_code for _ in range(2)] == [200, 429]


# -- what protects the answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/agents", "/health/live", "/nowhere", "/openapi.json", "/metrics"])
def test_every_answer_says_what_browsers_must_not_do_with_it(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers


def test_no_other_site_is_let_in_unless_it_is_named(client: TestClient) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = client.options(RUN, headers=headers)
    assert not [name for name in answer.headers if name.startswith("access-control")]
