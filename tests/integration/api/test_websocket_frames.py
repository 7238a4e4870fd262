"""Every frame of a WebSocket is answered: resumes with nothing to come, cancels of what others hear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from astromesh.access.scopes import Viewer
from astromesh.errors import InvalidInput
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import RecordingSink, ScriptedProvider
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.integration.api.test_runs import BODY, Gate, helper
from tests.integration.durable.test_durable_runs import PATIENCE, accepted, lookup, working


@asynccontextmanager
async def going(
    folder: Path,
) -> AsyncIterator[tuple[AgentRuntime, Gate, str, ClientConnection, dict[str, Any]]]:
    """A run whose model waits: its runtime and gate, the URL, the socket that began it, its first frame."""
    gate = Gate()
    runtime = runtime_of(helper(folder), ScriptedProvider(gate))
    async with (
        served(runtime) as at,
        connect(url := f"ws://{at}/v1/ws/agent/helper", open_timeout=60) as first,
    ):
        await first.send(json.dumps(BODY))
        started = json.loads(await first.recv())
        await gate.entered.wait()
        yield runtime, gate, url, first, started


async def said(socket: ClientConnection, frame: dict[str, Any] | None = None) -> dict[str, Any]:
    """The next frame, perhaps as the answer to one."""
    if frame is not None:
        await socket.send(json.dumps(frame))
    got: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
    return got


async def last(socket: ClientConnection) -> dict[str, Any]:
    while (frame := await said(socket))["type"] not in ("done", "cancelled", "error"):
        pass
    return frame


async def test_a_resume_behind_what_a_run_has_not_come_to_is_refused(tmp_path):
    async with going(tmp_path) as (_, gate, url, first, started), connect(url, open_timeout=60) as other:
        resume = {"type": "resume", "run_id": started["run_id"]}
        refused = await said(other, {**resume, "after": 99999})
        assert (refused["type"], refused["code"]) == ("error", "invalid_input")
        assert "99999" in refused["detail"]
        await other.send(json.dumps({**resume, "after": started["seq"]}))
        assert await said(other, {"type": "ping"}) == {"type": "pong"}
        gate.go.set()
        assert (await last(other))["type"] == (await last(first))["type"] == "done"


@pytest.mark.parametrize("more", [0, 1, 99999])
async def test_a_resume_behind_the_end_says_that_the_run_has_ended(tmp_path, more):
    async with going(tmp_path) as (_, gate, url, first, started), connect(url, open_timeout=60) as other:
        gate.go.set()
        end = await last(first)
        resume = {"type": "resume", "run_id": started["run_id"], "after": end["seq"] + more}
        refused = await said(other, resume)
        assert (refused["type"], refused["code"]) == ("error", "invalid_input")
        assert "has ended" in refused["detail"]
        assert await said(other, {**resume, "after": end["seq"] - 1}) == end


async def test_a_durable_run_is_not_followed_from_beyond_what_is_on_disk(tmp_path):
    stuck = asyncio.Event()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await asyncio.Event().wait()
        return ""

    viewer = Viewer("default", None)
    async with working(write(tmp_path, manifest()), ScriptedProvider(hangs), lookup()) as runtime:
        run_id = (await accepted(runtime)).run_id
        async with asyncio.timeout(PATIENCE):
            await stuck.wait()
            while not (events := await runtime.durable.store.events(run_id)):
                await asyncio.sleep(0.01)
        with pytest.raises(InvalidInput, match="99999"):
            await runtime.runs.follow(run_id, viewer, 99999, RecordingSink())
        leave = await runtime.runs.follow(run_id, viewer, events[-1].seq, RecordingSink())
        assert leave is not None
        leave()


async def test_the_cancel_of_a_run_that_another_socket_hears_is_answered_when_it_has_ended(tmp_path):
    async with going(tmp_path) as (_, gate, url, first, started), connect(url, open_timeout=60) as other:
        cancel = {"type": "cancel", "run_id": started["run_id"]}
        answer = await said(other, cancel)
        assert answer == {"type": "cancelled", "response": "", "run_id": started["run_id"]}
        assert gate.cancelled == 1
        assert (await last(first))["type"] == "cancelled"
        assert (await said(other, cancel))["code"] == "run_not_found"
        assert await said(other, {"type": "ping"}) == {"type": "pong"}


async def test_the_cancel_of_a_run_that_this_socket_hears_has_its_end_as_the_only_answer(tmp_path):
    async with going(tmp_path) as (_, _, _, first, started):
        await first.send(json.dumps({"type": "cancel", "run_id": started["run_id"]}))
        end = await last(first)
        assert (end["type"], end["run_id"], "seq" in end) == ("cancelled", started["run_id"], True)
        assert await said(first, {"type": "ping"}) == {"type": "pong"}


@pytest.mark.parametrize(
    "sent", [[b"\xff\xfe"], [b'{"type": "pi', b"ng\xff", b'"}']], ids=["whole", "in pieces"]
)
async def test_text_that_is_no_utf8_closes_the_socket_and_is_no_fault_of_ours(tmp_path, caplog, sent):
    runtime = runtime_of(helper(tmp_path), ScriptedProvider())
    async with served(runtime) as at, connect(f"ws://{at}/v1/ws/agent/helper", open_timeout=60) as socket:
        assert await said(socket, {"type": "ping"}) == {"type": "pong"}
        await socket.send(iter(sent), text=True)
        with pytest.raises(ConnectionClosedError) as closed:
            await asyncio.wait_for(socket.recv(), PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_text_in_pieces_is_one_frame_wherever_it_is_cut(tmp_path):
    runtime = runtime_of(helper(tmp_path), ScriptedProvider("Hi"))
    async with served(runtime) as at, connect(f"ws://{at}/v1/ws/agent/helper", open_timeout=60) as socket:
        frame = json.dumps({**BODY, "query": "é"}, ensure_ascii=False).encode()
        await socket.send((bytes([byte]) for byte in frame), text=True)
        assert (await last(socket))["response"] == "Hi"
