"""Events of durable runs that are more than a listener's buffer holds: a reader gets every one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

ROUNDS, CALLS = 6, 25
#: characters of the arguments of a call: together 3 MB, of which a buffer holds one
SIZE = 20_000
MEMORY = {"conversational": {"backend": "sqlite"}}
SUM = [{"name": "sum", "type": "builtin", "builtin": "calculator"}]


def rounds() -> list[list[ToolCall]]:
    expression = json.dumps({"expression": "1" + " " * SIZE})
    return [[ToolCall(f"c{n}-{i}", "sum", expression) for i in range(CALLS)] for n in range(ROUNDS)]


def numbers_of(text: str) -> list[int]:
    return [int(line.removeprefix("id: ")) for line in text.splitlines() if line.startswith("id: ")]


async def has_ended(client: httpx.AsyncClient, run: str) -> bool:
    return (await client.get(f"/v1/runs/{run}")).json()["status"] == "completed"


async def test_no_stored_event_is_dropped(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(memory=MEMORY, tools=SUM))
    async with client_of(runtime_of(folder, ScriptedProvider(*rounds(), "Done."))) as client:
        body = {"query": "Sum up.", "session_id": "s"}
        run = (await client.post("/v1/agents/helper/runs", json=body)).json()["run_id"]
        while not await has_ended(client, run):
            await asyncio.sleep(0.01)
        whole = await client.get(f"/v1/runs/{run}/events")
        rest = await client.get(f"/v1/runs/{run}/events", headers={"last-event-id": "100"})
    numbers = numbers_of(whole.text)
    assert len(whole.content) > 2 << 20
    assert numbers == list(range(1, len(numbers) + 1))
    assert whole.text.count("event: tool.started") == ROUNDS * CALLS
    assert whole.text.count("event: run.completed") == 1
    assert numbers_of(rest.text) == numbers[100:]
