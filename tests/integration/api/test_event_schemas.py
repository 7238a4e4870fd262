"""Events, frames and chunks have the form that `GET /openapi.json` describes, and each is described."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from starlette.datastructures import State
from websockets.asyncio.client import connect

from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.api.openapi import event_components
from astromesh.errors import ProviderError
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, served, write
from tests.integration.workflow.folders import runtime_with, small
from tests.platform.astromesh import ROOT

SSE = {"accept": "text/event-stream"}
TOOLS: list[dict[str, Any]] = [
    {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"},
    {
        "name": "explode",
        "type": "internal",
        "function": "tests.integration.sample_tools:explode",
        "approval": "required",
    },
]
Check = Callable[[str, Any], None]


def answers(request: CompletionRequest) -> Any:
    """Calls the tool that the question names, then answers; raises for the question `fail`."""
    question = next(m.content for m in reversed(request.messages) if m.role == "user")
    if question == "fail":
        raise ProviderError("down", provider="scripted", status=500)
    called = any(m.role == "tool" for m in request.messages)
    return "fine, says a@example.com" if called or question == "hi" else [_call(question)]


def _call(tool: str) -> ToolCall:
    return ToolCall("c1", tool, "{}" if tool == "explode" else '{"query": "x"}')


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return create_fastapi_app(State()).openapi()


@pytest.fixture(scope="module")
def require(described: dict[str, Any]) -> Check:
    """Raises where a value does not have the form of a component."""
    parts = {"components": described["components"]}
    validators = {
        name: jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", **parts})
        for name in ("RunEvent", "TaskEvent", "ServerFrame", "ClientFrame", "ChatCompletionChunk")
    }
    return lambda name, value: validators[name].validate(value)


def events(text: str) -> Iterator[dict[str, Any]]:
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        yield {"id": int(lines["id"]), "event": lines["event"], "data": json.loads(lines["data"])}


async def test_what_is_sent_has_the_form_that_is_described(tmp_path: Path, require: Check) -> None:
    memory = {"conversational": {"backend": "in_memory"}}
    rules = {"output": [{"type": "pii_detection", "action": "redact"}]}
    write(
        tmp_path,
        manifest("helper", tools=TOOLS[:1], memory=memory, guardrails=rules),
        manifest("careful", tools=TOOLS),
    )
    seen: set[str] = set()
    async with served(runtime_with(small(tmp_path), answers)) as at, httpx.AsyncClient(timeout=60) as http:
        url = f"http://{at}/v1"
        for query in ("lookup", "fail"):
            body = {"query": query, "session_id": query}
            stream = await http.post(f"{url}/agents/helper/run", json=body, headers=SSE)
            for event in events(stream.text):
                require("RunEvent", event)
                seen.add(event["event"])
        waiting = await http.post(f"{url}/agents/careful/run", json={"query": "explode", "session_id": "s"})
        run = f"{url}/runs/{waiting.json()['run_id']}"
        await http.post(f"{run}/cancel")
        for event in events((await http.get(f"{run}/events")).text):
            require("RunEvent", event)
            seen.add(event["event"])
        assert seen >= {
            "run.started", "tool.finished", "guardrail.action", "memory.persisted", "model.failed",
            "run.failed", "run.waiting", "run.completed", "run.cancelled", "model.delta",
        }  # fmt: skip

        task = (await http.post(f"{url}/workflows/small/runs", json={"input": 1})).json()["task_id"]
        kinds = []
        for event in events((await http.get(f"{url}/tasks/{task}/events")).text):
            require("TaskEvent", event)
            kinds.append(event["event"])
        assert (kinds[0], kinds[-1]) == ("task.started", "task.finished")

        chat = {"model": "helper", "stream": True, "messages": [{"role": "user", "content": "lookup"}]}
        chunks = (await http.post(f"{url}/chat/completions", json=chat)).text
        *pieces, done = (line.removeprefix("data: ") for line in chunks.strip().split("\n\n"))
        assert len(pieces) > 2 and done == "[DONE]"
        for piece in pieces:
            require("ChatCompletionChunk", json.loads(piece))

        async with connect(f"ws://{at}/v1/ws/agent/helper", open_timeout=60) as socket:
            for frame in (
                {"type": "ping"},
                {"query": "lookup", "session_id": "w"},
                {"type": "cancel", "run_id": "none"},
            ):
                require("ClientFrame", frame)
                await socket.send(json.dumps(frame))
            types: set[str] = set()
            while not types >= {"done", "error", "pong"}:
                frame = json.loads(await socket.recv())
                require("ServerFrame", frame)
                types.add(frame["type"])
            assert types >= {"run_started", "token", "tool_call", "tool_result"}


def test_a_value_of_another_form_is_refused(require: Check) -> None:
    for name, value in (
        ("RunEvent", {"id": 1, "event": "model.delta", "data": {}}),
        ("TaskEvent", {"id": 1, "event": "run.started", "data": {}}),
        ("ServerFrame", {"type": "token"}),
    ):
        with pytest.raises(jsonschema_rs.ValidationError):
            require(name, value)


def test_every_event_that_is_sent_is_described() -> None:
    """A new event has a class in astromesh/events.py, or a model in astromesh/api/openapi.py."""
    sources = "\n".join(path.read_text() for path in (ROOT / "astromesh").rglob("*.py"))
    sent = set(re.findall(r'\bemit\(\s*"([a-z]+\.[a-z_]+)"', sources)) | set(
        re.findall(r'EmitEvent\("([a-z]+\.[a-z_]+)"', sources)
    )
    found = event_components()
    described = {
        kind for name in ("RunEvent", "TaskEvent") for kind in found[name]["discriminator"]["mapping"]
    }
    assert sent - {"model.content", "tool.content"} <= described
    page = (ROOT / "docs" / "api.md").read_text()
    assert not [kind for kind in described if f"`{kind}`" not in page]
