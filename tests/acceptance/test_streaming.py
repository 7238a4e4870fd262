"""Streams of a real server with a real (stand-in) model behind it: SSE, WebSocket, chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.platform.astromesh import ServerProcess
from tests.platform.model import MockModel

AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: {name}, version: "1.0.0"}}
spec:
  identity: {{display_name: {name}, description: "test agent"}}
  model:
    primary: {{provider: openai, model: "{model}", endpoint: "{url}", api_key: sk-test, timeout: 120}}
  prompts: {{system: "You are {{{{ agent_name }}}}."}}
  orchestration: {{pattern: react, max_iterations: 5, timeout_seconds: 120}}
  memory: {{conversational: {{backend: sqlite, strategy: sliding_window, max_turns: 20}}}}
  tools: [{{name: now, type: internal, function: "tests.integration.sample_tools:lookup"}}]
{more}"""
REDACTING = """  guardrails:
    output: [{type: content_filter, forbidden_keywords: [brown fox], action: redact}]
"""
BLOCKING = """  guardrails:
    output: [{type: content_filter, forbidden_keywords: [brown fox], action: block, safe_response: Safe.}]
"""


@pytest.fixture(scope="module")
def server(_mock_llm: MockModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this module; each test uses sessions of its own."""
    home = tmp_path_factory.mktemp("streaming")
    agents = home / "config" / "agents"
    agents.mkdir(parents=True)
    models = {
        "words": ("mock+tokens=12", ""),
        "tools": ("mock+tools=1+tokens=6", ""),
        "slow": ("mock+tokens=2000+gap=50", ""),
        "late": ("mock+hang", ""),
        "cut": ("mock+tokens=12+cut=5", ""),
        "redacting": ("mock+tokens=40", REDACTING),
        "blocking": ("mock+tokens=40", BLOCKING),
    }
    for name, (model, more) in models.items():
        text = AGENT.format(name=name, model=model, url=_mock_llm.url, more=more)
        (agents / f"{name}.agent.yaml").write_text(text)
    server = ServerProcess(home, home / "config")
    server.start()
    yield server
    server.close()
    assert server.network_attempts() == []


async def sse(url: str, agent: str, session: str = "s") -> list[tuple[int, str, dict[str, Any]]]:
    """The whole event stream of one run: (id, event, data)."""
    body = {"query": "go", "session_id": session}
    events: list[tuple[int, str, dict[str, Any]]] = []
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream(
            "POST", f"{url}/v1/agents/{agent}/run", json=body, headers={"accept": "text/event-stream"}
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for block in _blocks(answer):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return events


async def _blocks(answer: httpx.Response) -> Any:
    text = ""
    async for piece in answer.aiter_text():
        text += piece
        while "\n\n" in text:
            block, text = text.split("\n\n", 1)
            yield block


def said(events: list[tuple[int, str, dict[str, Any]]], step: int) -> list[str]:
    return [d["content"] for _, kind, d in events if kind == "model.delta" and d["step"] == step]


async def frames(socket: ClientConnection, last: str = "done") -> list[dict[str, Any]]:
    """Frames up to the one of this type."""
    got: list[dict[str, Any]] = []
    while not got or got[-1]["type"] != last:
        got.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))
    return got


def socket_of(server: Any, agent: str) -> Any:
    return connect(f"ws{server.url.removeprefix('http')}/v1/ws/agent/{agent}", open_timeout=60)


async def test_sse_relays_the_models_own_deltas_and_joins_to_the_answer(server: Any) -> None:
    events = await sse(server.url, "words")
    answer = events[-1][2]
    assert [i for i, _, _ in events] == list(range(1, len(events) + 1))
    assert events[-1][1] == "run.completed"
    assert len(said(events, 1)) == 12
    assert "".join(said(events, 1)) == answer["response"]


async def test_a_websocket_sends_one_frame_per_delta_then_done(server: Any) -> None:
    async with socket_of(server, "tools") as socket:
        await socket.send(json.dumps({"query": "go", "session_id": "s"}))
        got = await frames(socket)
    kinds = [f["type"] for f in got]
    assert kinds == ["run_started", "tool_call", "tool_result", *["token"] * 6, "done"]
    assert (
        "".join(f["content"] for f in got if f["type"] == "token" and f["step"] == 2) == got[-1]["response"]
    )
    assert got[-1]["done"] is True
    assert len({f["run_id"] for f in got}) == 1
    assert [f["seq"] for f in got] == sorted(f["seq"] for f in got)
    assert got[-1]["metadata"]["tools_called"] == ["now"]


async def nothing_open(mock_llm: MockModel) -> None:
    """Returns when the model answers nobody any more."""
    async with asyncio.timeout(30):
        while mock_llm.stats()["open"]:
            await asyncio.sleep(0.02)


async def test_cancel_closes_the_model_stream_and_keeps_the_partial_text(
    server: Any, mock_llm: MockModel
) -> None:
    async with socket_of(server, "slow") as socket:
        await socket.send(json.dumps({"query": "go", "session_id": "c"}))
        first = json.loads(await socket.recv())
        for _ in range(3):
            await socket.recv()
        await socket.send(json.dumps({"type": "cancel", "run_id": first["run_id"]}))
        got = await frames(socket, "cancelled")
    assert got[-1]["response"]
    await nothing_open(mock_llm)
    turns = httpx.get(f"{server.url}/v1/agents/slow/sessions/c", timeout=60).json()["turns"]
    assert [(t["role"], t.get("status")) for t in turns] == [("user", None), ("assistant", "partial")]
    assert turns[1]["content"] == got[-1]["response"]


async def test_a_client_that_leaves_ends_its_run(server: Any, mock_llm: MockModel) -> None:
    async with socket_of(server, "slow") as socket:
        await socket.send(json.dumps({"query": "go", "session_id": "gone"}))
        await socket.recv()
        await socket.recv()
    await nothing_open(mock_llm)
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"query": "go", "session_id": "gone2"}
        leaves = asyncio.create_task(client.post(f"{server.url}/v1/agents/late/run", json=body))
        while mock_llm.stats()["open"] == 0:
            await asyncio.sleep(0.02)
        leaves.cancel()
        await asyncio.wait([leaves])
    await nothing_open(mock_llm)


async def test_wrong_frames_get_an_error_and_the_socket_lives(server: Any) -> None:
    async with socket_of(server, "words") as socket:
        for bad in (
            "{",
            "[]",
            '{"type": "dance"}',
            '{"query": "q"}',
            b"\x00\x01",
            '{"type": "cancel", "run_id": "x"}',
        ):
            await socket.send(bad)
            assert json.loads(await socket.recv())["type"] == "error"
        await socket.send('{"type": "ping"}')
        assert json.loads(await socket.recv()) == {"type": "pong"}
        await socket.send(json.dumps({"query": "go", "session_id": "s"}))
        assert (await frames(socket))[-1]["type"] == "done"


async def test_two_runs_share_a_socket(server: Any) -> None:
    async with socket_of(server, "words") as socket:
        for session in ("a", "b"):
            await socket.send(json.dumps({"query": "go", "session_id": session}))
        got = await frames(socket) + await frames(socket)
    done = [f for f in got if f["type"] == "done"]
    assert {f["session_id"] for f in done} == {"a", "b"}
    for frame in done:
        mine = [f["content"] for f in got if f["type"] == "token" and f["run_id"] == frame["run_id"]]
        assert "".join(mine) == frame["response"]


async def test_an_unknown_agent_is_told_and_closed_with_4404(server: Any) -> None:
    async with socket_of(server, "nobody") as socket:
        error = json.loads(await socket.recv())
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert (error["type"], error["code"]) == ("error", "agent_not_found")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4404


async def test_a_cut_model_stream_is_an_error_and_never_looks_complete(server: Any) -> None:
    events = await sse(server.url, "cut")
    assert len(said(events, 1)) == 5
    assert (events[-1][1], events[-1][2]["code"]) == ("run.failed", "all_providers_failed")
    assert "run.completed" not in [kind for _, kind, _ in events]


async def test_redacted_text_never_leaves_in_a_stream(server: Any) -> None:
    events = await sse(server.url, "redacting")
    text = "".join(said(events, 1))
    assert "brown fox" not in text
    assert text == events[-1][2]["response"]
    assert len(said(events, 1)) > 3


async def test_a_blocking_rule_streams_only_the_released_end(server: Any) -> None:
    events = await sse(server.url, "blocking")
    assert said(events, 1) == ["Safe."]
    assert events[-1][2]["response"] == "Safe."
    assert "brown" not in json.dumps(events)


async def test_streamed_and_not_streamed_answer_the_same(server: Any) -> None:
    streamed = (await sse(server.url, "tools", "one"))[-1][2]
    plain = httpx.post(
        f"{server.url}/v1/agents/tools/run", json={"query": "go", "session_id": "two"}, timeout=60
    ).json()
    assert streamed["response"].strip() == plain["response"].strip()  # the stand-in strips when not streaming
    for key in ("tools_called", "iterations", "stop_reason", "usage", "pattern"):
        assert streamed["metadata"][key] == plain["metadata"][key]


async def test_the_openai_client_drives_an_agent(server: Any) -> None:
    before = httpx.get(f"{server.url}/v1/agents/words/sessions", timeout=60).json()["sessions"]
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        names = [m.id async for m in client.models.list()]
        whole = await client.chat.completions.create(
            model="tools", messages=[{"role": "user", "content": "hi"}], user="chat-1"
        )
        pieces = []
        async for chunk in await client.chat.completions.create(
            model="words",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
                {"role": "user", "content": "three"},
            ],
            stream=True,
            stream_options={"include_usage": True},
        ):
            pieces.append(chunk)
    assert "tools" in names
    assert whole.choices[0].message.content
    assert whole.usage is not None and whole.usage.total_tokens > 0
    assert len([p for p in pieces if p.choices and p.choices[0].delta.content]) == 12
    assert pieces[-1].usage is not None
    assert httpx.get(f"{server.url}/v1/agents/words/sessions", timeout=60).json()["sessions"] == before
    assert len(httpx.get(f"{server.url}/v1/agents/tools/sessions/chat-1", timeout=60).json()["turns"]) == 2


async def test_what_a_chat_client_may_not_do_is_400(server: Any) -> None:
    tool = {"type": "function", "function": {"name": "no name", "parameters": {}}}
    user = [{"role": "user", "content": "hi"}]
    bad = [
        {"model": "words", "messages": user, "tools": [tool]},
        {"model": "words", "messages": user, "n": 2},
        {"model": "words", "messages": []},
        {"model": "words", "messages": [{"role": "assistant", "content": "x"}]},
    ]
    answers = [httpx.post(f"{server.url}/v1/chat/completions", json=b, timeout=60) for b in bad]
    unknown = httpx.post(
        f"{server.url}/v1/chat/completions", json={"model": "x", "messages": user}, timeout=60
    )
    assert [a.status_code for a in answers] == [400] * 4
    assert all(a.json()["error"]["message"] for a in answers)
    assert unknown.status_code == 404
