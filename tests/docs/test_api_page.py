"""docs/api.md names every route, error code, frame and event that there is."""

from __future__ import annotations

import re

import orjson
import pytest
from starlette.datastructures import State

from astromesh.api.errors import error_response
from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.api.ws import _ENCODERS, _FRAMES, to_frame
from astromesh.errors import AgentNotFoundError, error_classes
from astromesh.types import Event
from tests.platform.astromesh import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()
_EMITTED = re.compile(r'\bemit\(\s*"([a-z]+\.[a-z]+)"')
_PAYLOADS = {
    "session_id": "s", "role": "assistant", "content": "", "step": 1, "id": "c", "name": "t",
    "arguments": {}, "ok": True, "code": "internal", "detail": "", "response": "",
}  # fmt: skip


def test_every_route_stands_there(subtests: pytest.Subtests) -> None:
    app = create_fastapi_app(State())
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            with subtests.test(f"{method} {path}"):
                assert f"| `{method.upper()} {path}` |" in PAGE
    assert "`WS /v1/ws/agent/{agent_name}`" in PAGE


def test_the_description_has_errors_in_the_form_that_they_are_answered_in() -> None:
    app = create_fastapi_app(State())
    operations = [o for methods in app.openapi()["paths"].values() for o in methods.values()]
    described = [o["responses"]["404"]["content"] for o in operations if "404" in o["responses"]]
    answered = orjson.loads(error_response(AgentNotFoundError("nobody", "")).body)
    assert described
    for content in described:
        assert content.keys() == {"application/problem+json"}
        assert content["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
    schema = app.openapi()["components"]["schemas"]["Problem"]
    assert {*schema["required"]} == {*schema["properties"]} == {*answered}


def test_every_error_code_stands_with_its_status(subtests: pytest.Subtests) -> None:
    rows = re.findall(r"^\| (\d{3}) \| ([^|]+) \|", PAGE, re.MULTILINE)
    documented = {code: int(status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    public = {kind.code: kind.status for kind in error_classes() if kind.public and not kind.public_code}
    assert documented == public | {"internal": 500}


def test_every_frame_stands_there(subtests: pytest.Subtests) -> None:
    events = [Event("r", 1, 0.0, kind, _PAYLOADS) for kind in _ENCODERS if kind != "frame"]
    frames = [frame for event in events if (frame := to_frame(event))]
    for kind in (*(frame["type"] for frame in frames), *_FRAMES, "pong"):
        with subtests.test(kind):
            assert f'"type": "{kind}"' in PAGE


def test_every_event_stands_there(subtests: pytest.Subtests) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "astromesh").rglob("*.py"))
    for kind in sorted(set(_EMITTED.findall(sources))):
        with subtests.test(kind):
            assert f"`{kind}`" in PAGE
