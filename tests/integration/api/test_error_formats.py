"""Bad input has the form of errors that the clients of each door read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import pytest
import yaml

from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.api.test_mcp_publish import call_of, token
from tests.unit.access.tokens import AUDIENCE, ISSUER, SECRET

USER = {"role": "user", "content": "Hi"}
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
AGENT, A2A = "/v1/agents/helper", {"a2a-version": "1.0"}
GRPC = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    405: "UNIMPLEMENTED", 413: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED",
}  # fmt: skip


class Door(NamedTuple):
    """A route and its form of errors.

    Args:
        form: which errors its clients read.
        body: of a sound request.
        wrong: the body with a field of the wrong type, and the field.
        stranger: path and body for an agent that does not exist.
        query: a request with a wrong query parameter, and its name.
    """

    form: str
    path: str
    body: Any
    wrong: tuple[Any, str]
    stranger: tuple[str, Any]
    query: tuple[str, str] | None = None
    headers: Any = {}  # noqa: RUF012


CHAT = {"model": "helper", "messages": [USER]}
RESPONSE = {"model": "helper", "input": "Hi"}
PAGE = {"threadId": "t", "runId": "r", "messages": [{"id": "m", **USER}]}
SEND = {"message": MESSAGE}
RPC = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": SEND}
OLD_HEADERS, CALL = call_of("2025-11-25")
DOORS = {
    "chat": Door(
        "openai", "/v1/chat/completions", CHAT, ({**CHAT, "messages": 3}, "messages"),
        ("/v1/chat/completions", {**CHAT, "model": "nobody"}),
    ),
    "responses": Door(
        "openai", "/v1/responses", RESPONSE, ({**RESPONSE, "input": 3}, "input"),
        ("/v1/responses", {**RESPONSE, "model": "nobody"}),
        ("/v1/responses/resp_1/input_items?limit=x", "limit"),
    ),
    "agui": Door(
        "agui", f"{AGENT}/agui", PAGE, ({**PAGE, "messages": 3}, "messages"), ("/v1/agents/nobody/agui", PAGE)
    ),
    "a2a-json-rpc": Door(
        "json-rpc", f"{AGENT}/a2a", RPC, ({**RPC, "params": {"message": 3}}, ""),
        ("/v1/agents/nobody/a2a", RPC), headers=A2A,
    ),
    "a2a-http": Door(
        "google", f"{AGENT}/a2a/message:send", SEND, ({"message": 3}, ""),
        ("/v1/agents/nobody/a2a/message:send", SEND), (f"{AGENT}/a2a/tasks?pageSize=x", ""), headers=A2A,
    ),
    "mcp": Door("json-rpc", "/mcp", CALL, ({**CALL, "params": 3}, ""), ("", None), headers=OLD_HEADERS),
}  # fmt: skip


def check(form: str, answer: httpx.Response, param: str = "") -> None:
    """Asserts the form of an error."""
    body, status = answer.json(), answer.status_code
    if form == "openai":
        error = body["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        assert not param or error["param"] == param
    elif form == "agui":
        assert body["type"] == "RUN_ERROR"
        assert body["message"] and body["code"]
    elif form == "json-rpc":
        assert body["jsonrpc"] == "2.0" and "id" in body and "result" not in body
        assert isinstance(body["error"]["code"], int) and body["error"]["message"]
    else:
        error = body["error"]
        assert (error["code"], error["status"]) == (status, GRPC[status])
        assert error["message"]
        assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"


class Case(NamedTuple):
    name: str
    statuses: tuple[int, ...]
    method: str = "POST"
    path: str = ""
    body: bytes = b""
    scope: str = "agents:run agents:read runs:read"
    header: str = ""
    param: str = ""


def cases(door: Door) -> Iterator[Case]:
    sound = orjson.dumps(door.body)
    no_json = (200, 400, 422)  # 200: a JSON-RPC error of A2A's SDK
    yield Case("no key", (401,), body=sound, scope="", header="www-authenticate")
    yield Case("no scope", (403,), body=sound, scope="tools:read")
    yield Case("method", (405,), "PUT", body=sound, header="allow")
    yield Case("size", (413,), body=b'"' + b"x" * 1_100_000 + b'"')
    yield Case("not UTF-8", no_json, body=b'{"model": "\xff"}')
    yield Case("not JSON", no_json, body=b'{"model": ')
    wrong, param = door.wrong
    yield Case("wrong type", no_json, body=orjson.dumps(wrong), param=param)
    yield Case("rate", (429,), body=sound, header="retry-after")
    if door.stranger[0]:
        yield Case("agent", (404,), path=door.stranger[0], body=orjson.dumps(door.stranger[1]))
    if door.form == "google":
        yield Case("route", (404,), path=f"{AGENT}/a2a/nothing", body=sound)
        yield Case("method below", (405,), "GET", path=door.path, header="allow")
        yield Case("card", (404,), "GET", "/v1/agents/nobody/a2a/.well-known/agent-card.json")
    if door.form == "openai":
        yield Case("field", (400,), body=orjson.dumps({**door.body, "nonsense": 1}), param="nonsense")
    if door.query is not None:
        yield Case("query", (400,), "GET", path=door.query[0], param=door.query[1])


@pytest.mark.parametrize("name", DOORS)
async def test_bad_input_has_the_form_of_its_door(
    tmp_path: Path, name: str, subtests: pytest.Subtests
) -> None:
    jwt = {"issuer": ISSUER, "audience": AUDIENCE, "secret_env": "S"}
    spec = {
        "auth": {"mode": "jwt", "jwt": jwt},
        "api": {"rate_limit": {"max_calls": 1, "window_seconds": 3600}},
    }
    whole = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": spec}
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(whole))
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("fine"), env={"S": SECRET})
    door = DOORS[name]
    async with client_of(runtime) as http:
        for case in cases(door):
            headers = {"content-type": "application/json", **door.headers}
            if case.scope:
                headers["authorization"] = f"Bearer {token(case.scope, case.name)}"
            path = case.path or door.path
            if case.name == "rate":
                await http.request(case.method, path, content=b"{}", headers=headers)
            answer = await http.request(case.method, path, content=case.body or None, headers=headers)
            with subtests.test(case.name):
                assert answer.status_code in case.statuses, answer.text
                check(door.form, answer, case.param)
                assert not case.header or answer.headers[case.header]
                if door.form == "json-rpc" and case.name in ("not UTF-8", "not JSON"):
                    assert answer.json()["error"]["code"] == -32700
                assert case.name != "method below" or answer.headers["allow"] == "OPTIONS, POST"
