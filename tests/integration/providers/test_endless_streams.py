"""What a model streams is bounded as what it sends whole is, and what is long goes out in pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from websockets.asyncio.client import connect

from astromesh.api.app import create_app
from astromesh.api.middleware.response import CHUNK_BYTES
from astromesh.errors import AnswerTooLarge, AnswerTooLong, ProviderError
from astromesh.net.http import MAX_BODY, Http, StreamingResponse
from astromesh.plugins import Deps, Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import RecordingSink, Reply, ScriptedProvider
from astromesh.types import CompletionRequest, Delta, Message
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.platform.model_server import ModelServer, Scenario

RUN = "/v1/agents/helper/run"
BODY = {"query": "go", "session_id": "s"}
MIB = "x" * (1 << 20)
#: more than is taken, in events that are each small enough
MANY = 36
ASKED = CompletionRequest((Message("user", "go"),))
BASES = {"openai": "/v1", "anthropic": "", "ollama": "", "gemini": "/v1beta"}


async def broken(kind: str, server: ModelServer, *, stream: bool = True) -> tuple[ProviderError, int]:
    """The error of a call, and how many characters came before it."""
    said = 0
    async with Http() as http:
        options = {"model": "m-1", "endpoint": server.url + BASES[kind], "api_key": "k", "timeout": 20}
        provider: Any = await Plugins().open("providers", kind, options, Deps(http=http))
        try:
            if not stream:
                await provider.complete(ASKED)
            async for piece in provider.stream(ASKED):
                assert isinstance(piece, Delta)
                said += len(piece.content)
        except ProviderError as error:
            return error, said
    raise AssertionError("an answer without an end was taken for one")


@pytest.mark.parametrize("kind", BASES)
async def test_a_stream_may_say_as_much_as_a_whole_answer(kind: str) -> None:
    async with ModelServer() as server:
        server.script = [Scenario(pieces=(MIB,) * MANY)]
        whole, _ = await broken(kind, server, stream=False)
        error, said = await broken(kind, server)
    assert (type(error), str(error), error.retryable) == (type(whole), str(whole), whole.retryable)
    assert f"sent more than {MAX_BODY} bytes" in str(error)
    assert MAX_BODY < said < MAX_BODY + 4 * len(MIB)


def _sse(event: Any) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _openai(index: int) -> bytes:
    function = {"index": 0, "id": "c", "function": {"name": "search", "arguments": MIB}}
    return _sse({"choices": [{"index": 0, "delta": {"tool_calls": [function]}}]})


def _anthropic(kind: str, key: str) -> Callable[[int], bytes]:
    return lambda _: _sse({"type": "content_block_delta", "index": 1, "delta": {"type": kind, key: MIB}})


def _ollama(index: int) -> bytes:
    call = {"function": {"name": "search", "arguments": {"q": MIB}}}
    return orjson.dumps({"message": {"content": "", "tool_calls": [call]}, "done": False}) + b"\n"


def _gemini(index: int) -> bytes:
    call = {"functionCall": {"name": "search", "args": {"q": MIB}}}
    return _sse({"candidates": [{"index": 0, "content": {"parts": [call]}}]})


_STARTS = {
    "tool_use": {"type": "tool_use", "id": "c", "name": "search", "input": {}},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
SILENT: dict[str, tuple[str, Callable[[int], bytes], str]] = {
    "openai's arguments": ("openai", _openai, ""),
    "anthropic's arguments": ("anthropic", _anthropic("input_json_delta", "partial_json"), "tool_use"),
    "anthropic's thoughts": ("anthropic", _anthropic("thinking_delta", "thinking"), "thinking"),
    "ollama's calls": ("ollama", _ollama, ""),
    "gemini's calls": ("gemini", _gemini, ""),
}


@pytest.mark.parametrize("case", SILENT)
async def test_what_is_streamed_without_a_word_of_text_is_bounded_too(case: str) -> None:
    kind, event, start = SILENT[case]
    raw = b"".join(map(event, range(MANY)))
    if start:
        begun = {"type": "content_block_start", "index": 1, "content_block": _STARTS[start]}
        raw = _sse(begun) + raw
    async with ModelServer() as server:
        server.script = [Scenario(after=1, then="raw", raw=raw, pieces=("",))]
        error, said = await broken(kind, server)
    assert f"sent more than {MAX_BODY} bytes" in str(error)
    assert said == 0


async def test_calls_without_end_are_bounded_by_their_number() -> None:
    """Each is small, but looking for the one that a piece belongs to takes longer with each."""
    pieces = (
        {"choices": [{"delta": {"tool_calls": [{"index": n, "id": f"c{n}", "function": {"name": "a"}}]}}]}
        for n in range(10_000)
    )
    async with ModelServer() as server:
        server.script = [Scenario(after=1, then="raw", raw=b"".join(map(_sse, pieces)))]
        error, _ = await broken("openai", server)
    assert f"sent more than {MAX_BODY} bytes" in str(error)


async def test_bytes_around_the_text_are_bounded_by_themselves() -> None:
    """A stream that says nothing at all ends, too: events count with all that stands in them."""
    async with ModelServer() as server, Http() as http:
        server.script = [Scenario(pieces=("",) * 100)]
        url = f"{server.url}/v1/chat/completions"
        body = orjson.dumps({"model": "m", "stream": True, "messages": []})
        async with http.stream("POST", url, body=body, limit=10_000) as incoming:
            with pytest.raises(AnswerTooLarge, match="sent more than 10000 bytes"):
                await read(incoming)


async def read(incoming: StreamingResponse) -> None:
    while await incoming.chunk():
        pass


async def test_a_run_whose_model_never_ends_fails_with_what_was_said(tmp_path: Path) -> None:
    """As every answer that breaks off; the server goes on, and the next run is answered."""
    async with ModelServer() as model:
        model.script = [Scenario(pieces=(MIB,) * MANY)]
        block = {"provider": "openai", "model": "m", "endpoint": f"{model.url}/v1", "api_key": "k"}
        folder = write(tmp_path, manifest(model={"primary": block}))
        (folder / "runtime.yaml").write_text(
            "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {limits: {max_answer_bytes: 268435456}}\n"
        )
        runtime = AgentRuntime(folder, data_dir=tmp_path / "data", env={})
        async with served(runtime) as at, aiohttp.ClientSession(f"http://{at}") as client:
            async with client.post(RUN, json=BODY, headers={"accept": "text/event-stream"}) as answer:
                events = await answer.read()
            kind, data = events[events.rindex(b"event: ") :].splitlines()[:2]
            failed = orjson.loads(data.removeprefix(b"data: "))
            async with client.get("/v1/runs") as listed:
                run = (await listed.json())["runs"][0]
            model.script = [Scenario()]
            async with client.post(RUN, json=BODY) as answer:
                again = await answer.json()
    assert kind == b"event: run.failed"
    assert failed["code"] == "all_providers_failed"
    assert "broke off" in failed["detail"]
    assert MAX_BODY < len(failed["response"]) < MAX_BODY + 4 * len(MIB)
    assert [attempt["error"] for attempt in run["attempts"]] == ["provider_unavailable"]
    assert again["response"] == "Hello, world."


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_long_answers_go_out_in_pieces_between_which_others_have_their_turn(
    tmp_path: Path, accept: str
) -> None:
    text = "y" * (8 * CHUNK_BYTES)
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider(Reply(chunks=(text,))))
    app = create_app(runtime)
    sent: list[bytes] = []
    turns: list[int] = []
    turn = 0

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def receive() -> Any:
        if sent or asked.is_set():
            await asyncio.Event().wait()
        asked.set()
        return {"type": "http.request", "body": orjson.dumps(BODY)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            turns.append(turn)

    asked = asyncio.Event()
    scope = {
        "type": "http", "method": "POST", "path": RUN, "raw_path": RUN.encode(), "query_string": b"",
        "headers": [(b"accept", accept.encode()), (b"host", b"x")], "state": {}, "http_version": "1.1",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
    }  # fmt: skip
    async with app.router.lifespan_context(app):
        other = asyncio.create_task(others())
        await app(scope, receive, send)
        other.cancel()
    assert text.encode() in b"".join(sent)
    assert max(map(len, sent)) <= CHUNK_BYTES
    full = [at for at, body in zip(turns, sent, strict=True) if len(body) >= CHUNK_BYTES // 4]
    assert len(full) >= 8
    assert full == sorted(set(full)), "nobody had a turn between two pieces"


async def test_a_long_frame_goes_out_in_fragments(tmp_path: Path) -> None:
    text = "é" * (4 * CHUNK_BYTES)
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider(Reply(chunks=(text,)), "next"))
    async with (
        served(runtime) as at,
        connect(f"ws://{at}/v1/ws/agent/helper", max_size=None, open_timeout=60) as socket,
    ):
        await socket.send(json.dumps(BODY))
        longest, frame = 0, {"type": ""}
        while frame["type"] != "done":
            pieces = [piece async for piece in socket.recv_streaming(decode=False)]
            longest = max(longest, *map(len, pieces))
            frame = json.loads(b"".join(pieces))
        assert frame["response"] == text
        assert 0 < longest <= CHUNK_BYTES
        await socket.send(json.dumps(BODY))
        while frame["type"] != "done" or frame["response"] == text:
            frame = json.loads(await asyncio.wait_for(socket.recv(), 30))
    assert frame["response"] == "next"


async def test_an_answer_in_one_event_is_too_long_as_any_other_and_is_asked_for_once(tmp_path: Path) -> None:
    async with ModelServer() as model:
        model.script = [Scenario(pieces=(MIB * 5,))]
        block = {"provider": "openai", "model": "m", "endpoint": f"{model.url}/v1", "api_key": "k"}
        folder = write(tmp_path, manifest(model={"primary": block}))
        async with AgentRuntime(folder, data_dir=tmp_path / "data", env={}) as runtime:
            with pytest.raises(AnswerTooLong, match="max_answer_bytes"):
                await runtime.run("helper", "go", "s", sinks=[RecordingSink()])
        assert len(model.seen) == 1
