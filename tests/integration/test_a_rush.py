"""Requests that come together: the first ones are at their models before the last ones have begun."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from astromesh.api.turns import TOGETHER
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

COUNT = 8 * TOGETHER
PATIENCE = 30.0


async def test_the_first_are_answered_before_the_last_begin_and_all_are_answered(tmp_path: Path) -> None:
    write(tmp_path, manifest("plain"))
    asked, asked_at_the_first_answer = 0, 0

    async def says_after_a_look_at_the_sockets(request: CompletionRequest) -> str:
        nonlocal asked, asked_at_the_first_answer
        asked += 1
        await asyncio.sleep(0)
        asked_at_the_first_answer = asked_at_the_first_answer or asked
        return "done"

    provider = ScriptedProvider(says_after_a_look_at_the_sockets, repeat=True)
    async with runtime_of(tmp_path, provider) as runtime, client_of(runtime) as client:
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(
                *(
                    client.post("/v1/agents/plain/run", json={"query": "go", "session_id": f"s-{n}"})
                    for n in range(COUNT)
                )
            )
    assert [answer.status_code for answer in answers] == [200] * COUNT
    assert 0 < asked_at_the_first_answer <= 3 * TOGETHER


async def test_health_is_told_while_others_wait_for_their_turn(tmp_path: Path) -> None:
    write(tmp_path, manifest("plain"))
    ends: list[str] = []

    async def asks(client: httpx.AsyncClient, path: str) -> None:
        answer = await client.get(path)
        assert answer.status_code == 200
        ends.append(path)

    async with runtime_of(tmp_path, ScriptedProvider("done")) as runtime, client_of(runtime) as client:
        await client.get("/v1/tools")  # the routes are loaded with it
        paths = [*["/v1/tools"] * COUNT, "/health/live"]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(asks(client, path) for path in paths))
    assert ends.index("/health/live") < COUNT / 2
