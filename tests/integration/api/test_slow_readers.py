"""R11: a reader who has stopped reading costs a bounded queue, and the run does not wait for it."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from websockets.asyncio.client import connect

from astromesh.api.event_streams import MAX_PENDING_BYTES, EventBuffer
from astromesh.telemetry.run_log import EVENT_OVERHEAD, RunLog
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import manifest, runtime_of, served, write

T = TypeVar("T")
BODY = {"query": "go", "session_id": "s"}
TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
#: 20 MB of text in pieces, and 10 MB of tool arguments
SAID = tuple("x" * 1000 for _ in range(20_000))
CALLS = [ToolCall(f"c{n}", "lookup", json.dumps({"query": "y" * 50_000})) for n in range(200)]


async def stalled_sse(at: str) -> socket.socket:
    """A reader of one run that never reads."""
    host, _, port = at.partition(":")
    reader = socket.create_connection((host, int(port)))
    body = json.dumps(BODY)
    head = f"POST /v1/agents/helper/run HTTP/1.1\r\nhost: {at}\r\naccept: text/event-stream\r\n"
    reader.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    return reader


async def stalled_websocket(at: str) -> socket.socket:
    """The same by WebSocket: a handshake and one frame by hand, so that no library reads ahead."""
    host, _, port = at.partition(":")
    reader = socket.create_connection((host, int(port)))
    reader.sendall(
        f"GET /v1/ws/agent/helper HTTP/1.1\r\nhost: {at}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    reader.setblocking(False)
    assert b" 101 " in await asyncio.get_running_loop().sock_recv(reader, 1000)
    text = json.dumps(BODY).encode()
    reader.sendall(bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)
    return reader


def new(kind: type[T], earlier: list[Any]) -> list[T]:
    """What there is of a kind, without what earlier tests left to the collector."""
    return [o for o in gc.get_objects() if type(o) is kind and not any(o is e for e in earlier)]


def generous(folder: Path, *agents: dict[str, Any]) -> Path:
    """A project whose agents may give answers of any length."""
    write(folder, *agents)
    (folder / "runtime.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {limits: {max_answer_bytes: 268435456}}\n"
    )
    return folder


READERS = {"sse": stalled_sse, "websocket": stalled_websocket}


@pytest.mark.parametrize("transport", READERS)
async def test_a_run_ends_while_its_reader_stands_still(tmp_path: Path, transport: str) -> None:
    earlier = [found for found in gc.get_objects() if type(found) in (EventBuffer, RunLog)]
    provider = ScriptedProvider(Reply(tool_calls=CALLS), Reply(chunks=SAID), "next")
    runtime = runtime_of(generous(tmp_path, manifest(tools=TOOLS)), provider)
    async with served(runtime) as at, httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
        with await READERS[transport](at):
            while not (runs := (await client.get("/v1/runs")).json()["runs"]):
                await asyncio.sleep(0.01)
            path = f"/v1/runs/{runs[0]['run_id']}"
            while not (
                boxes := [box for box in new(EventBuffer, earlier) if box.pending_bytes or box.dropped]
            ):
                await asyncio.sleep(0.01)  # its first events have fitted into the socket
            waiting = now = 0
            while (state := (await client.get(path)).json())["status"] == "running":
                waiting = max(waiting, now)
                now = max(box.pending_bytes for box in boxes)  # counts if the run has not ended behind it
                await asyncio.sleep(0.02)
            other = await client.post("/v1/agents/helper/run", json=BODY | {"session_id": "other"})
        assert state["status"] == "completed"
        assert len(state["result"]["response"]) == 20_000_000
        assert other.json()["response"] == "next"
        assert len(boxes) == 1
        assert waiting <= MAX_PENDING_BYTES
        assert boxes[0].dropped > 10_000
        logs = new(RunLog, earlier)
        assert all(
            log.size < log.max_bytes + len(state["result"]["response"]) + 20 * EVENT_OVERHEAD for log in logs
        )
        gone = await client.get(f"{path}/events")
        assert (gone.status_code, gone.json()["code"]) == (410, "events_gone")


async def test_a_reader_who_wakes_up_finds_the_gap_and_the_whole_answer(tmp_path: Path) -> None:
    provider = ScriptedProvider(Reply(chunks=SAID))
    runtime = runtime_of(generous(tmp_path, manifest()), provider)
    async with (
        served(runtime) as at,
        connect(f"ws://{at}/v1/ws/agent/helper", max_size=None, max_queue=1, open_timeout=60) as reader,
    ):
        await reader.send(json.dumps(BODY))
        async with httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
            while (await client.get("/v1/runs?status=completed")).json()["runs"] == []:
                await asyncio.sleep(0.02)
        frames = [json.loads(await reader.recv())]
        while frames[-1]["type"] != "done":
            frames.append(json.loads(await reader.recv()))
    numbers = [frame["seq"] for frame in frames]
    assert numbers == sorted(numbers)
    assert len(frames) < 20_000
    assert len(frames[-1]["response"]) == 20_000_000
