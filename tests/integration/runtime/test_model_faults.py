"""Every fault of a model × streaming or not × before and after the first token × with and without a fallback.

Where nothing was said yet the fallback answers. Otherwise the run ends in one clean error that clients can
read, what was said is kept, nothing looks complete, and the next request works.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from websockets.asyncio.client import connect

from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.clock import SystemClock
from tests.integration.agents_folder import manifest, served, write
from tests.platform.model_server import ModelServer, Scenario

RUN = "/v1/agents/helper/run"
REDACT = {"output": [{"type": "content_filter", "forbidden_keywords": ["world"], "action": "redact"}]}
SQLITE = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
GARBAGE = b"<html>this is not JSON"
NOT_JSON = b"data: {not json}\n\n"


class Fault(NamedTuple):
    """A scenario, and what a caller without a fallback is told: status, code, codes of the attempts."""

    scenario: Scenario
    status: int = 502
    code: str = "all_providers_failed"
    attempts: tuple[str, ...] = ("provider_unavailable",) * 3


REJECTED = (422, "invalid_input", ("provider_rejected",))
REFUSED = (502, "all_providers_failed", ("provider_unauthorized",))
ONCE = ("provider_unavailable",)
LIMITED = (503, "providers_rate_limited")
TIMEOUT = (502, "all_providers_failed", ("provider_timeout",))

STATUSES: dict[str, Fault] = {
    "400": Fault(Scenario(status=400), *REJECTED),
    "401": Fault(Scenario(status=401), *REFUSED),
    "403": Fault(Scenario(status=403), *REFUSED),
    # no such model, or another address: the operator's fault, not the caller's, and it stays
    "302": Fault(Scenario(status=302, headers={"location": "http://127.0.0.1:9/"}), attempts=ONCE),
    "404": Fault(Scenario(status=404), attempts=ONCE),
    "413": Fault(Scenario(status=413), *REJECTED),
    "422": Fault(Scenario(status=422), *REJECTED),
    "429": Fault(Scenario(status=429), *LIMITED, ("provider_rate_limited",) * 3),
    "500": Fault(Scenario(status=500)),
    "503": Fault(Scenario(status=503)),
}
# it comes last: the service is left alone for an hour
ENOUGH = {
    "429 for an hour": Fault(
        Scenario(status=429, headers={"retry-after": "3600"}), *LIMITED, ("provider_rate_limited",)
    )
}
WHOLE: dict[str, Fault] = STATUSES | {
    "reset": Fault(Scenario(after=0, then="cut")),
    "half an answer": Fault(Scenario(after=1, then="cut")),
    "garbage": Fault(Scenario(then="raw", raw=GARBAGE), attempts=ONCE),
    "an empty answer": Fault(Scenario(then="raw", raw=b""), attempts=ONCE),
    "JSON of another kind": Fault(Scenario(then="raw", raw=b'[1, "two"]'), attempts=ONCE),
    "an error as 200": Fault(Scenario(then="error")),
    "an answer that says nothing": Fault(
        Scenario(then="raw", raw=b'{"choices": [{"message": {"content": null}, "finish_reason": null}]}')
    ),
    "silence": Fault(Scenario(then="silent"), *TIMEOUT),
    **ENOUGH,
}
# the first event of a stream says the role, no text
BEFORE: dict[str, Fault] = STATUSES | {
    "reset": Fault(Scenario(after=0, then="cut")),
    "cut": Fault(Scenario(after=1, then="cut")),
    "garbage": Fault(Scenario(after=1, then="raw", raw=NOT_JSON), attempts=ONCE),
    "no stream at all": Fault(Scenario(after=0, then="raw", raw=GARBAGE)),
    "an error event": Fault(Scenario(after=1, then="error")),
    "an end without an answer": Fault(Scenario(after=1)),
    "an end and nothing else": Fault(Scenario(after=0, then="raw", raw=b"data: [DONE]\n\n")),
    "silence": Fault(Scenario(after=0, then="silent"), *TIMEOUT),
    "silence after the role": Fault(Scenario(after=1, then="silent"), *TIMEOUT),
    **ENOUGH,
}
AFTER: dict[str, Fault] = {
    "cut": Fault(Scenario(after=3, then="cut"), attempts=ONCE),
    "garbage": Fault(Scenario(after=3, then="raw", raw=NOT_JSON), attempts=ONCE),
    "an error event": Fault(Scenario(after=3, then="error"), attempts=ONCE),
    "an end without a finish": Fault(Scenario(after=3), attempts=ONCE),
    "silence": Fault(Scenario(after=3, then="silent"), *TIMEOUT),
}


class Hasty(SystemClock):
    """The machine's time, without the pauses between tries."""

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0 if seconds < 1.5 else seconds)


class House(NamedTuple):
    """A server with an agent whose primary model is `first`, with `second` behind it or not."""

    client: httpx.AsyncClient
    url: str
    first: ModelServer
    second: ModelServer
    has_fallback: bool

    def meets(self, fault: Fault) -> None:
        self.first.script = [fault.scenario]
        self.first.seen, self.second.seen = [], []

    async def works_again(self, fault: Fault) -> None:
        """The next request is answered by the model that failed, unless it asked to be left alone."""
        if "retry-after" in fault.scenario.headers:
            return
        self.first.script = [Scenario()]
        answer = await self.client.post(RUN, json=body("next"))
        assert answer.json()["response"] == "Hello, [REDACTED]."

    async def kept(self, session: str) -> list[str]:
        answer = await self.client.get(f"/v1/agents/helper/sessions/{session}")
        return [turn["content"] for turn in answer.json().get("turns", [])]

    async def newest(self) -> dict[str, Any]:
        run: dict[str, Any] = (await self.client.get("/v1/runs")).json()["runs"][0]
        return run


def body(session: str) -> dict[str, str]:
    return {"query": "go", "session_id": session}


def errors(attempts: list[dict[str, Any]]) -> list[str]:
    return [attempt["error"] for attempt in attempts]


@pytest.fixture(params=["with a fallback", "alone"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with ModelServer() as first, ModelServer() as second:
        model = {"primary": block(first), **({"fallback": block(second)} if "with" in request.param else {})}
        folder = write(tmp_path, manifest(model=model, guardrails=REDACT, memory=SQLITE))
        runtime = AgentRuntime(folder, data_dir=tmp_path / "data", env={}, clock=Hasty())
        async with served(runtime) as at, httpx.AsyncClient(base_url=f"http://{at}", timeout=20) as client:
            await client.get("/v1/runs")  # loads the routes: beside a call that would take it from its time
            yield House(client, at, first, second, "with" in request.param)


def block(server: ModelServer) -> dict[str, Any]:
    endpoint = f"{server.url}/v1"
    return {"provider": "openai", "model": "m", "endpoint": endpoint, "api_key": "sk-x", "timeout": 0.4}


async def test_without_streaming(house: House, subtests: pytest.Subtests) -> None:
    for name, fault in WHOLE.items():
        with subtests.test(name):
            house.meets(fault)
            answer = await house.client.post(RUN, json=body(name))
            if house.has_fallback:
                await answered(house, name, fault, answer)
            else:
                await refused(house, name, fault, answer)
            await house.works_again(fault)


async def answered(house: House, name: str, fault: Fault, answer: httpx.Response) -> None:
    found = answer.json()
    assert (answer.status_code, found["response"]) == (200, "Hello, [REDACTED].")
    assert errors(found["metadata"]["attempts"]) == [fault.attempts[0]]
    assert await house.kept(name) == ["go", "Hello, [REDACTED]."]


async def refused(house: House, name: str, fault: Fault, answer: httpx.Response) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (fault.status, fault.code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "code", "trace_id", "run_id"} <= set(problem)
    assert "openai/m: " in problem["detail"]
    state = (await house.client.get(f"/v1/runs/{problem['run_id']}")).json()
    assert errors(state["attempts"]) == list(fault.attempts)
    assert state["error"] == {"code": fault.code, "detail": problem["detail"]}
    assert await traced(house, problem["trace_id"]) == {"orchestration": "error", "llm.complete": "error"}
    assert await house.kept(name) == []


async def traced(house: House, trace_id: str) -> dict[str, str]:
    """How orchestration and the model call ended, by the trace; its attempts are those of the run."""
    spans = (await house.client.get(f"/v1/traces/{trace_id}")).json()["spans"]
    call = next(span for span in spans if span["name"] == "llm.complete")
    assert call["attributes"]["attempts"] == (await house.newest())["attempts"]
    assert (call["attributes"]["provider"], call["attributes"]["model"]) == ("openai", "m")
    return {s["name"]: s["status"] for s in spans if s["name"] in ("orchestration", "llm.complete")}


async def by_sse(house: House, session: str) -> tuple[str, str, dict[str, Any]]:
    """What was said, then type and data of the last event."""
    answer = await house.client.post(RUN, json=body(session), headers={"accept": "text/event-stream"})
    assert answer.status_code == 200
    events = []
    for text in answer.text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        events.append((fields["event"], json.loads(fields["data"])))
    ends = [kind for kind, _ in events if kind in ("run.completed", "run.failed", "run.cancelled")]
    assert len(ends) == 1
    said = "".join(data["content"] for kind, data in events if kind == "model.delta")
    return said, *events[-1]


async def by_socket(house: House, session: str) -> tuple[str, str, dict[str, Any]]:
    said, frame = "", {"type": ""}
    async with connect(f"ws://{house.url}/v1/ws/agent/helper", open_timeout=60) as socket:
        await socket.send(json.dumps(body(session)))
        while frame["type"] not in ("done", "error", "cancelled"):
            frame = json.loads(await asyncio.wait_for(socket.recv(), 20))
            said += frame["content"] if frame["type"] == "token" else ""
        await socket.send('{"type": "ping"}')
        assert json.loads(await socket.recv()) == {"type": "pong"}
    return said, {"done": "run.completed", "error": "run.failed"}[frame["type"]], frame


TRANSPORTS = {"sse": by_sse, "websocket": by_socket}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_streaming_before_the_first_token(
    house: House, transport: str, subtests: pytest.Subtests
) -> None:
    for name, fault in BEFORE.items():
        with subtests.test(name):
            house.meets(fault)
            said, kind, data = await TRANSPORTS[transport](house, name)
            if house.has_fallback:
                assert (kind, said) == ("run.completed", "Hello, [REDACTED].")
                assert data["response"] == said
                assert errors(data["metadata"]["attempts"]) == [fault.attempts[0]]
            else:
                assert (kind, said, data["code"]) == ("run.failed", "", fault.code)
                assert data["detail"]
                assert errors((await house.newest())["attempts"]) == list(fault.attempts)
            await house.works_again(fault)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_streaming_after_the_first_token(
    house: House, transport: str, subtests: pytest.Subtests
) -> None:
    for name, fault in AFTER.items():
        with subtests.test(name):
            house.meets(fault)
            said, kind, data = await TRANSPORTS[transport](house, name)
            assert (kind, data["code"]) == ("run.failed", fault.code)
            # the rest waits for the rule that might redact it, and an error does not release it
            assert said
            assert "Hello, ".startswith(said)
            assert "broke off" in data["detail"]
            assert (len(house.first.seen), len(house.second.seen)) == (1, 0)
            state = await house.newest()
            assert (state["status"], state["result"]["response"]) == ("failed", said)
            (error,) = state["result"]["metadata"]["errors"]
            assert (error["node"], error["type"]) == ("react", "AllProvidersFailed")
            assert errors(state["attempts"]) == list(fault.attempts)
            newest = (await house.client.get("/v1/traces?limit=1")).json()["traces"][0]
            assert (await traced(house, newest["trace_id"]))["llm.complete"] == "error"
            assert await house.kept(name) == []
            await house.works_again(fault)


@pytest.mark.parametrize("name", ["400", "503", "silence"])
@pytest.mark.parametrize("house", ["alone"], indirect=True)
async def test_the_openai_client_reads_what_went_wrong(house: House, name: str) -> None:
    """The errors of chat completions are those classes that users of the client catch."""
    house.first.script = [WHOLE[name].scenario]
    messages: Any = [{"role": "user", "content": "go"}]
    async with openai.AsyncOpenAI(base_url=f"http://{house.url}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as failed:
            await client.chat.completions.create(model="helper", messages=messages)
        house.first.script = [AFTER["cut"].scenario]
        stream = await client.chat.completions.create(model="helper", messages=messages, stream=True)
        pieces: list[Any] = []
        with pytest.raises(openai.APIError, match="answer broke off"):
            await _collect(stream, pieces)
    status = WHOLE[name].status  # invalid input is 400 for clients of OpenAI
    assert failed.value.status_code == (400 if status == 422 else status)
    assert failed.value.code == WHOLE[name].code
    assert [p.choices[0].finish_reason for p in pieces] == [None] * len(pieces)


async def _collect(stream: Any, pieces: list[Any]) -> None:
    async for piece in stream:
        pieces.append(piece)
