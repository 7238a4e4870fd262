"""The routes of FastAPI are loaded beside the first runs: who asks for one before that waits, and gets it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import State
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp
from structlog.testing import capture_logs

from astromesh.api.app import LazyFastAPI, Server, create_app
from astromesh.api.auth import Auth
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write

RUN = {"query": "Hello", "session_id": "s1"}
LIMITED = (
    "apiVersion: astromesh/v1\nkind: RuntimeConfig\n"
    "spec: {api: {rate_limit: {max_calls: 9, window_seconds: 60}}}\n"
)


def client(app: Server) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def test_what_is_asked_for_while_they_are_loaded_waits_and_is_answered(tmp_path: Path) -> None:
    """Runs do not wait, and whoever leaves meanwhile takes nothing from the others."""
    runtime = runtime_of(write(tmp_path, manifest("helper")), ScriptedProvider("fine", repeat=True))
    app = create_app(runtime)
    async with app.router.lifespan_context(app), client(app) as http:
        left = asyncio.create_task(http.get("/v1/tools"))
        await asyncio.sleep(0)
        left.cancel()
        paths = ("/v1/tools", "/v1/agents", "/openapi.json", "/nowhere")
        asked = [http.get(path) for path in paths]
        run, *answers = await asyncio.gather(http.post("/v1/agents/helper/run", json=RUN), *asked)
    assert run.json()["response"] == "fine"
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404]
    assert answers[-1].json()["code"] == "not_found"


class CountedRest(LazyFastAPI):
    """Routes that are loaded when they may be; the first `fails` times there is no memory for them."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__(State())
        self.begun, self.may, self.loads, self.fails = threading.Event(), threading.Event(), 0, fails

    def _load(self) -> ASGIApp:
        self.begun.set()
        assert self.may.wait(30)
        self.loads += 1
        if self.loads <= self.fails:
            raise MemoryError
        return PlainTextResponse("routes")


async def test_who_leaves_while_they_are_loaded_makes_nobody_load_them_again() -> None:
    rest = CountedRest()
    first = asyncio.create_task(rest.load())
    await asyncio.to_thread(rest.begun.wait, 30)
    first.cancel()
    await asyncio.wait([first])
    others = [asyncio.create_task(rest.load()) for _ in range(3)]
    rest.may.set()
    made = await asyncio.gather(*others)
    assert rest.loads == 1
    assert set(map(id, made)) == {id(await rest.load())}


async def test_routes_that_could_not_be_loaded_are_loaded_for_the_next_who_asks() -> None:
    rest = CountedRest(fails=1)
    rest.may.set()
    with pytest.raises(MemoryError):
        await rest.load()
    assert not rest.is_loaded
    await rest.load()
    assert (rest.is_loaded, rest.loads) == (True, 2)


@pytest.mark.parametrize("takes_requests", [True, False])
async def test_neither_runs_nor_health_checks_nor_metrics_load_them(
    tmp_path: Path, takes_requests: bool
) -> None:
    """A server that is asked for nothing else spares their memory, and so does a worker."""
    folder = write(tmp_path, manifest("helper"))
    (folder / "runtime.yaml").write_text(LIMITED)
    runtime = runtime_of(folder, ScriptedProvider("fine"))
    app = create_app(runtime, takes_requests=takes_requests)
    async with app.router.lifespan_context(app), client(app) as http:
        for path in ("/health/live", "/health/ready"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/metrics")).headers["x-ratelimit-remaining"] == "8"
        media_type = (await http.head("/metrics")).headers["content-type"]
        assert media_type == "text/plain; version=0.0.4; charset=utf-8"
        if not takes_requests:
            assert not app.rest.is_loaded
            return
        assert (await http.post("/v1/agents/helper/run", json=RUN)).json()["response"] == "fine"
        assert "astromesh_runs_total{" in (await http.get("/metrics")).text
        assert not app.rest.is_loaded
        assert (await http.post("/metrics")).headers["allow"] == "GET, HEAD, OPTIONS"
        assert (await http.get("/v1/agents")).status_code == 200
        assert app.rest.is_loaded


class _Broken(Auth):
    async def authorise(self, *arguments: Any, **options: Any) -> Any:
        raise ValueError("nobody expected this")


async def test_a_crash_outside_of_the_routes_is_a_problem_document_and_in_the_log(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest("helper")), ScriptedProvider("fine"))
    app = create_app(runtime, _Broken())
    async with app.router.lifespan_context(app), client(app) as http:
        with capture_logs() as lines:
            answers = [await http.post("/v1/agents/helper/run", json=RUN), await http.get("/v1/tools")]
            alive = await http.get("/health/live")
    assert [answer.status_code for answer in answers] == [500, 500]
    assert [answer.json()["code"] for answer in answers] == ["internal", "internal"]
    assert "nobody expected" not in answers[0].text + answers[1].text
    crashed = [line["trace_id"] for line in lines if line["event"] == "request_crashed"]
    assert crashed == [answer.json()["trace_id"] for answer in answers]
    assert alive.status_code == 200
