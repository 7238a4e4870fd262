"""Requests that come together: the first ones are at their models before the last ones have begun."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from astromesh.api.app import create_app
from astromesh.api.middleware.limits import MAX_STARTS
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

COUNT = 8 * MAX_STARTS
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
    assert 0 < asked_at_the_first_answer <= 3 * MAX_STARTS


async def test_health_is_told_while_others_wait_for_their_turn(tmp_path: Path) -> None:
    write(tmp_path, manifest("plain"))
    ends: list[str] = []

    async def asks(client: httpx.AsyncClient, path: str) -> None:
        while (answer := await client.get(path)).status_code == 503:  # a slow machine refuses the last ones
            await asyncio.sleep(float(answer.headers["retry-after"]))
        assert answer.status_code == 200
        ends.append(path)

    async with runtime_of(tmp_path, ScriptedProvider("done")) as runtime, client_of(runtime) as client:
        await client.get("/v1/tools")  # the routes are loaded with it
        paths = [*["/v1/tools"] * COUNT, "/health/live"]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(asks(client, path) for path in paths))
    assert ends.index("/health/live") < COUNT / 2


async def test_who_came_before_the_server_is_drained_begins_and_who_comes_then_is_refused(
    tmp_path: Path,
) -> None:
    write(tmp_path, manifest("plain"))
    async with runtime_of(tmp_path, ScriptedProvider("done", repeat=True)) as runtime:
        app = create_app(runtime)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):

            def ask(number: int) -> asyncio.Task[httpx.Response]:
                asked = {"query": "go", "session_id": f"s-{number}"}
                return asyncio.create_task(client.post("/v1/agents/plain/run", json=asked))

            before = [ask(number) for number in range(COUNT)]
            async with asyncio.timeout(PATIENCE):
                await asyncio.sleep(0)  # they come
                await app.state.fair_start.wait_for_earlier()
                await runtime.drain(PATIENCE)
                answers = await asyncio.gather(*before)
                late = await ask(COUNT)
    assert [answer.status_code for answer in answers] == [200] * COUNT
    assert late.status_code == 503
