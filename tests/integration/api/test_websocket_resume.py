"""A socket that comes back after a crash: what it joins is the answer, from wherever it resumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, Delta
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.durable.test_durable_runs import PATIENCE, accepted, lookup, working

ENDS = ("done", "error", "cancelled")


class BreaksOff(ScriptedProvider):
    """A model that says the beginning of its answer, and then nothing more."""

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        yield Delta("The answer")
        await asyncio.Event().wait()


def heard(folder: Path, run_id: str, after: int) -> list[dict[str, Any]]:
    """The frames of a run behind `after` in a new process, which takes the run up again."""
    provider = ScriptedProvider(Reply("The answer is 42.", chunks=("The ", "answer is ", "42.")))
    with (
        TestClient(create_app(runtime_of(folder, provider))) as client,
        client.websocket_connect("/v1/ws/agent/helper") as socket,
    ):
        socket.send_json({"type": "resume", "run_id": run_id, "after": after})
        frames = [socket.receive_json()]
        while frames[-1]["type"] not in ENDS:
            frames.append(socket.receive_json())
    return frames


def joined(frames: list[dict[str, Any]]) -> str:
    """The text of the last step as docs/api.md says to read it."""
    steps: dict[int, str] = {}
    for frame in frames:
        if frame["type"] == "restarted":
            steps[frame["step"]] = ""
        elif frame["type"] == "token":
            steps[frame["step"]] = steps.get(frame["step"], "") + frame["content"]
    return steps[max(steps)]


@pytest.mark.parametrize("seen", [False, True], ids=("from-the-start", "behind-what-was-seen"))
async def test_void_tokens_are_named_and_the_rest_joins_to_the_response(tmp_path: Path, seen: bool) -> None:
    folder = write(tmp_path, manifest())
    async with working(folder, BreaksOff(), lookup()) as one:
        row = await accepted(one)
        async with asyncio.timeout(PATIENCE):
            while not (
                said := [e for e in await one.durable.store.events(row.run_id) if e.type == "model.delta"]
            ):
                await asyncio.sleep(0.01)
    frames = await asyncio.to_thread(heard, folder, row.run_id, said[0].seq if seen else 0)
    first = (
        [{"type": "token", "step": said[0].data["step"], "content": said[0].data["content"]}] if seen else []
    )
    assert [f["step"] for f in frames if f["type"] == "restarted"] == [said[0].data["step"]]
    assert frames[-1]["response"] == joined(first + frames) == "The answer is 42."
