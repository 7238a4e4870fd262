"""Every route × every way of authentication, generated from the app's own routes (reliability.md S1)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.datastructures import State
from starlette.routing import BaseRoute, Route
from starlette.testclient import TestClient, WebSocketDenialResponse

from astromesh.access.keys import ApiKeyRequest, ApiKeyStore
from astromesh.access.scopes import ADMIN, SCOPES
from astromesh.api.app import create_app
from astromesh.api.auth import RequiredScope
from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.storage.sqlite import FILE, Database
from astromesh.telemetry.clock import SystemClock
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.unit.access.tokens import SECRET, claims, signed

HEAD = "apiVersion: astromesh/v1\nkind: RuntimeConfig\n"
MODES = {
    "api_key": HEAD + "spec: {auth: {mode: api_key}}\n",
    "jwt": HEAD + "spec: {auth: {mode: jwt, jwt: {secret_env: JWT_SECRET}}}\n",
    "both": HEAD + "spec: {auth: {mode: both, jwt: {secret_env: JWT_SECRET}}}\n",
}
#: a WebSocket checks its scope before it accepts, so that a refusal is an HTTP answer
SOCKETS = {"/v1/ws/agent/{agent_name}": "agents:run"}


class Guarded(NamedTuple):
    """Something of the server that can be called: method `WS` for a WebSocket."""

    method: str
    path: str
    scope: str

    @property
    def described(self) -> str:
        """The path as the description has it, without convertors."""
        return re.sub(r":\w+}", "}", self.path)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def routes() -> Iterator[Guarded]:
    found = list(flat(create_fastapi_app(State()).routes))
    described = {route.path for route in found if isinstance(route, APIRoute)}
    for route in found:
        if isinstance(route, APIWebSocketRoute):
            yield Guarded("WS", route.path, SOCKETS.get(route.path, ""))
        elif isinstance(route, APIRoute):
            yield from (Guarded(m, route.path, scope_of(route)) for m in sorted(route.methods or ()))
        elif route.path not in described:
            yield from (Guarded(m, route.path, "") for m in sorted(route.methods or ()))


def flat(found: Iterable[BaseRoute]) -> Iterator[Route | APIRoute | APIWebSocketRoute]:
    """Routes without the routers around them; nobody can say that one of an unknown kind is safe."""
    for route in found:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from flat(inner.routes)
        else:
            assert isinstance(route, Route | APIRoute | APIWebSocketRoute), f"what is {route!r}?"
            yield route


def scope_of(route: APIRoute) -> str:
    guards = [d.dependency for d in route.dependencies if isinstance(d.dependency, RequiredScope)]
    return guards[0].name if guards else ""


EVERY = list(routes())
#: for every caller with a credential
OF_CALLERS = "/v1/caller"
GUARDED = [route for route in EVERY if route.scope]
OPEN = [route for route in EVERY if not route.scope and route.path != OF_CALLERS]
#: the routes that need no credential (webhooks are signed)
PUBLIC = frozenset({
    "/", "/console", "/console/{path:path}", "/docs", "/docs/{name}",
    "/health", "/health/live", "/health/ready",
    "/v1/channels/{channel}/webhook", "/.well-known/oauth-protected-resource/mcp",
})  # fmt: skip


def test_routes_were_found() -> None:
    assert {"GET", "POST", "DELETE", "WS"} <= {route.method for route in EVERY}
    assert len(GUARDED) > 10


def test_the_routes_without_a_scope_are_listed_as_public() -> None:
    assert {route.path for route in OPEN} <= PUBLIC


def test_every_scope_is_one_that_keys_can_be_given_and_no_guarded_route_is_public() -> None:
    assert {route.scope for route in GUARDED} <= set(SCOPES)
    assert PUBLIC.isdisjoint(route.path for route in GUARDED)


# -- asking them ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("config"), manifest("helper"))


@pytest.fixture(scope="module")
def open_client(folder: Path) -> Iterator[TestClient]:
    """A server with `auth: {mode: none}`."""
    with client_of(folder) as client:
        yield client


class Keys(NamedTuple):
    """A server that asks who is calling, and a credential for every set of scopes that the tests ask for."""

    client: TestClient
    tokens: dict[frozenset[str], str]

    def headers(self, *scopes: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[frozenset(scopes)]}"}


@pytest.fixture(scope="module", params=MODES)
def keys(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Keys]:
    guarded = write(tmp_path_factory.mktemp("guarded"), manifest("helper"))
    (guarded / "runtime.yaml").write_text(MODES[request.param])
    made = asyncio.run(make_keys(guarded / "data"))
    signed_ones = {scopes: token_of(scopes) for scopes in made}
    half = {scopes: made[scopes] for scopes in [*made][::2]}
    tokens = {"api_key": made, "jwt": signed_ones, "both": {**signed_ones, **half}}[request.param]
    with client_of(guarded) as client:
        yield Keys(client, tokens)


def client_of(folder: Path) -> TestClient:
    provider = ScriptedProvider("fine", repeat=True)
    runtime = runtime_of(folder, provider, env={"JWT_SECRET": SECRET})
    return TestClient(create_app(runtime), raise_server_exceptions=False)


def token_of(scopes: frozenset[str]) -> str:
    return signed(claims(time.time(), iss=None, aud=None, scope=" ".join(sorted(scopes))))


async def make_keys(data: Path) -> dict[frozenset[str], str]:
    wanted = [{ADMIN}, {"agents:run:helper"}, {"agents:run:other"}]
    wanted += [{scope} for scope in SCOPES if scope != ADMIN]
    wanted += [set(SCOPES) - {ADMIN, scope} for scope in SCOPES]
    async with Database(data / FILE) as database:
        store = await ApiKeyStore.open(database, SystemClock())
        return {
            frozenset(scopes): (await store.create(ApiKeyRequest("test", frozenset(scopes))))[1]
            for scopes in wanted
        }


#: what path parameters stand for; the others are ids of things that do not exist
_STANDS_FOR = dict.fromkeys(("name", "agent_name", "agent", "pipeline"), "helper") | {"channel": "whatsapp"}
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def status(client: TestClient, route: Guarded, headers: dict[str, str] | None = None) -> int:
    """What a call of the route answers; 101 for a WebSocket that was accepted."""
    path = _PARAMETER.sub(lambda found: _STANDS_FOR.get(found[1], "x1"), route.path)
    if route.method == "WS":
        return socket_status(client, path, headers=headers or {})
    of_protocol = {"input": "x"} if "/responses" in path else {"messages": [{"role": "user", "content": "x"}]}
    body: Any = {"model": "helper", **of_protocol}
    json = body if route.method == "POST" else None
    return client.request(route.method, path, headers=headers, json=json).status_code


def socket_status(client: TestClient, path: str, **how: Any) -> int:
    try:
        with client.websocket_connect(path, **how):
            return 101
    except WebSocketDenialResponse as denied:
        return denied.status_code


def unlike(expected: set[int], routes: Iterable[Guarded], status_of: Callable[[Guarded], int]) -> list[str]:
    """The routes that answer otherwise, with what they answer."""
    found = [(route, status_of(route)) for route in routes]
    return [f"{route}: {status}" for route, status in found if status not in expected]


REFUSED = {401, 403}
ANSWERED = set(range(100, 600)) - REFUSED


def test_without_authentication_configured_everything_is_open_to_this_machine(
    open_client: TestClient,
) -> None:
    assert not unlike(ANSWERED, EVERY, lambda route: status(open_client, route))


def test_public_routes_need_no_key(keys: Keys) -> None:
    assert not unlike(ANSWERED, OPEN, lambda route: status(keys.client, route))


def test_no_key_is_401(keys: Keys) -> None:
    assert not unlike({401}, GUARDED, lambda route: status(keys.client, route))


@pytest.mark.parametrize("wrong", ["cut", "longer", "am_x_y", "eyJhbGciOiJub25lIn0.e30.", "x"])
def test_a_wrong_key_is_401(keys: Keys, wrong: str) -> None:
    right = keys.tokens[frozenset({ADMIN})]
    token = {"cut": right[:-1], "longer": right + "x"}.get(wrong, wrong)
    headers = {"authorization": f"Bearer {token}"}
    assert not unlike({401}, GUARDED, lambda route: status(keys.client, route, headers))


def test_a_key_with_every_scope_but_this_one_is_403(keys: Keys) -> None:
    others = set(SCOPES) - {ADMIN}
    assert not unlike(
        {403}, GUARDED, lambda route: status(keys.client, route, keys.headers(*(others - {route.scope})))
    )


def test_a_key_with_the_scope_comes_in(keys: Keys) -> None:
    assert not unlike(ANSWERED, GUARDED, lambda route: status(keys.client, route, keys.headers(route.scope)))


def test_an_admin_comes_in_everywhere(keys: Keys) -> None:
    assert not unlike(ANSWERED, GUARDED, lambda route: status(keys.client, route, keys.headers(ADMIN)))


#: these let in whoever may run some agent: /mcp shows only those (test_mcp_publish.py), a fork looks at its
#: run first (test_forks.py)
OF_SOME_AGENT = {"/mcp", "/v1/runs/{run_id}/fork"}
RUNS = [route for route in GUARDED if route.scope == "agents:run" and route.path not in OF_SOME_AGENT]


def test_a_key_for_one_agent_runs_this_one_and_no_other(keys: Keys) -> None:
    mine, others = keys.headers("agents:run:helper"), keys.headers("agents:run:other")
    assert not unlike(ANSWERED, RUNS, lambda route: status(keys.client, route, mine))
    assert not unlike({403}, RUNS, lambda route: status(keys.client, route, others))


def test_every_credential_learns_what_it_may_do(keys: Keys, open_client: TestClient) -> None:
    assert keys.client.get(OF_CALLERS).status_code == 401
    for scopes in ({"agents:read"}, {"agents:run:helper"}, {ADMIN}):
        assert keys.client.get(OF_CALLERS, headers=keys.headers(*scopes)).json()["scopes"] == [*scopes]
    assert open_client.get(OF_CALLERS).json()["scopes"] == [ADMIN]


# -- how a key is sent ---------------------------------------------------------------------------------------


def test_a_key_may_come_in_either_header(keys: Keys) -> None:
    token = keys.tokens[frozenset({"agents:read"})]
    for headers in ({"x-api-key": token}, {"authorization": f"bearer {token}"}):
        assert keys.client.get("/v1/agents", headers=headers).status_code == 200


def test_a_key_in_the_url_is_no_key(keys: Keys) -> None:
    token = keys.tokens[frozenset({ADMIN})]
    assert keys.client.get(f"/v1/agents?api_key={token}&token={token}").status_code == 401
    assert socket_status(keys.client, f"/v1/ws/agent/helper?token={token}") == 401


def test_a_socket_takes_the_key_as_a_subprotocol_and_answers_with_it(keys: Keys) -> None:
    protocol = f"bearer.{keys.tokens[frozenset({'agents:run'})]}"
    with keys.client.websocket_connect("/v1/ws/agent/helper", subprotocols=[protocol]) as socket:
        accepted: Any = socket.accepted_subprotocol
    assert accepted == protocol
    assert socket_status(keys.client, "/v1/ws/agent/helper", subprotocols=["bearer.am_x_y"]) == 401


def test_refusals_are_problem_documents_that_say_what_to_do_and_not_what_was_sent(keys: Keys) -> None:
    wrong = keys.tokens[frozenset({ADMIN})][:-1]
    for headers, code, word in (
        ({}, "unauthorized", "Authorization"),
        ({"authorization": f"Bearer {wrong}"}, "unauthorized", "not valid"),
        (keys.headers("agents:run"), "forbidden", "agents:read"),
    ):
        answer = keys.client.get("/v1/agents", headers=headers)
        assert answer.headers["content-type"].startswith("application/problem+json")
        assert answer.json()["code"] == code
        assert word in answer.json()["detail"]
        assert wrong not in answer.text


# -- pages of other sites ------------------------------------------------------------------------------------

PAGES = [("https://evil.example", 403), ("null", 403), ("http://127.0.0.1.evil.example", 403)]
LOCAL = [("http://127.0.0.1:8000", 200), ("http://localhost:3000", 200), ("http://[::1]:1", 200)]


@pytest.mark.parametrize(("origin", "expected"), [*PAGES, *LOCAL])
def test_an_open_server_answers_no_page_of_another_site(
    open_client: TestClient, origin: str, expected: int
) -> None:
    headers = {"origin": origin}
    assert open_client.get("/v1/agents", headers=headers).status_code == expected
    socket = socket_status(open_client, "/v1/ws/agent/helper", headers=headers)
    assert socket == (101 if expected == 200 else 403)


HOSTS = [
    ("evil.example", 403), ("127.0.0.1.evil.example:8000", 403), ("localhost.evil.example", 403),
    ("127.0.0.1:8000", 200), ("localhost", 200), ("app.localhost:8000", 200),
    ("[::1]:8000", 200), ("box", 200), ("192.0.2.7:8000", 200),
]  # fmt: skip


@pytest.mark.parametrize(("host", "expected"), HOSTS)
def test_an_open_server_is_not_called_by_a_name_that_somebody_made_to_lead_here(
    open_client: TestClient, host: str, expected: int
) -> None:
    """What a page reads from its own site's name comes without an Origin (DNS rebinding)."""
    assert open_client.get("/v1/agents", headers={"host": host}).status_code == expected
    socket = socket_status(open_client, "/v1/ws/agent/helper", headers={"host": host})
    assert socket == (101 if expected == 200 else 403)


def test_a_server_with_keys_has_any_name(keys: Keys) -> None:
    headers = {"host": "agents.example", **keys.headers("agents:read")}
    assert keys.client.get("/v1/agents", headers=headers).status_code == 200


def test_a_page_with_a_key_may_come_from_anywhere(keys: Keys) -> None:
    headers = {"origin": "https://evil.example", **keys.headers("agents:read")}
    assert keys.client.get("/v1/agents", headers=headers).status_code == 200


def test_allowed_origins_may_call_and_are_told_so(tmp_path: Path) -> None:
    page = "https://app.example.com"
    folder = write(tmp_path, manifest("helper"))
    runtime = f"apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {{api: {{cors_origins: ['{page}']}}}}\n"
    (folder / "runtime.yaml").write_text(runtime)
    app = create_app(runtime_of(folder, ScriptedProvider()), cors_origins=[page])
    with TestClient(app) as client:
        answer = client.get("/v1/agents", headers={"origin": page})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page)
        assert "x-ratelimit-remaining" in answer.headers["access-control-expose-headers"]
        asked = {"origin": page, "access-control-request-method": "POST"}
        assert client.options("/v1/agents/helper/run", headers=asked).status_code == 200
        stranger = client.get("/v1/agents", headers={"origin": "https://evil.example"})
        assert stranger.status_code == 403
        assert "access-control-allow-origin" not in stranger.headers
