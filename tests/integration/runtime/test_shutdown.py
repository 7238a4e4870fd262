"""A runtime leaves nothing behind: no thread, no queue, no open session, however it began and ended."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict

from astromesh.access.scopes import Viewer
from astromesh.durable.base import RunQuery, RunRow, RunSegment, Wake
from astromesh.durable.in_process import InProcessBackend
from astromesh.durable.leases import EXPIRY_SECONDS
from astromesh.errors import ConfigError, StoreUnavailable
from astromesh.runtime.records import RunRequest
from astromesh.testing import ManualClock, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

ME = Viewer("default", "anonymous")
PATIENCE = 30.0


def over(folder: Path, **spec: Any) -> Path:
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
    (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))
    return folder


async def settled(runtime, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            run = await runtime.runs.get(run_id, ME)
            if run["status"] not in ("queued", "running"):
                return run
            await asyncio.sleep(0.01)


async def test_runtimes_over_one_database_follow_each_other_in_a_process(tmp_path, postgres_database):
    """Beside one that only reads, and without a thread that is left."""
    folder = over(write(tmp_path, manifest()), storage={"url": postgres_database})
    async with runtime_of(folder, ScriptedProvider("Hi")) as reader:
        assert (await reader.runs.list(RunQuery(*ME))).runs == []
        before = set(threading.enumerate())
        for _ in range(2):
            async with runtime_of(folder, ScriptedProvider("Hi")) as one:
                await one.durable.start()
        left = [t.name for t in set(threading.enumerate()) - before if not t.name.startswith("asyncio_")]
    assert left == []


async def test_a_queue_that_was_away_at_the_start_is_tried_again(tmp_path):
    """The run that could not be accepted is refused; the next one is worked on."""
    tried, closed = [], []

    class Slow(InProcessBackend):
        """A dispatcher whose queue is away at first."""

        async def start(self, work: RunSegment, wake: Wake) -> None:
            tried.append(self)
            if len(tried) == 1:
                raise StoreUnavailable("The queue is away.")
            await super().start(work, wake)

        async def close(self) -> None:
            closed.append(self)
            await super().close()

    plugins = {"durable_backends": {"in_process": Slow}}
    async with runtime_of(write(tmp_path, manifest()), ScriptedProvider("Hi"), plugins=plugins) as runtime:
        with pytest.raises(StoreUnavailable):
            await runtime.runner.accept(runtime.agent("helper"), RunRequest("Hello", "s-1"))
        assert closed == tried
        row = await runtime.runner.accept(runtime.agent("helper"), RunRequest("Hello", "s-1"))
        assert (await settled(runtime, row.run_id))["status"] == "completed"
    assert closed == tried
    assert len(tried) == 2


async def test_what_a_leaving_server_cuts_off_is_told_so(tmp_path):
    """As uvicorn does it when its time is over, or at a second signal: the request's task is cancelled."""
    begun = asyncio.Event()

    async def hangs(_: Any) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider(hangs))
    async with client_of(runtime) as client:
        body = {"query": "Hello", "session_id": "s-1"}
        asking = asyncio.create_task(client.post("/v1/agents/helper/run", json=body))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await runtime.drain(0.0)
        asking.cancel()
        answer = await asking
    assert (answer.status_code, answer.json()["code"]) == (503, "shutting_down")
    assert answer.headers["retry-after"]


async def test_a_server_that_drains_finishes_what_runs_and_refuses_what_comes(tmp_path):
    """Plain and durable runs go on, new ones get 503 with Retry-After, readiness says so."""
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_: Any) -> str:
        begun.release()
        await go.wait()
        return "done"

    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider(slow, repeat=True))
    async with client_of(runtime) as client:

        async def ask(route: str, session: str) -> Any:
            return await client.post(
                f"/v1/agents/helper/{route}", json={"query": "Hello", "session_id": session}
            )

        run_id = (await ask("runs", "s-1")).json()["run_id"]
        plain = asyncio.create_task(ask("run", "s-2"))
        for _ in range(2):
            await asyncio.wait_for(begun.acquire(), PATIENCE)
        draining = asyncio.create_task(runtime.drain(PATIENCE))
        await asyncio.sleep(0)
        for route in ("run", "runs"):
            refused = await ask(route, "s-3")
            assert (refused.status_code, refused.json()["code"]) == (503, "shutting_down")
            assert refused.headers["retry-after"]
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "shutting_down")
        assert (await client.get(f"/v1/runs/{run_id}")).json()["status"] == "running"
        assert not draining.done()
        go.set()
        assert (await plain).json()["response"] == "done"
        await draining
        assert (await settled(runtime, run_id))["status"] == "completed"


class Refusing:
    """An exporter that cannot be opened."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="allow")

    @classmethod
    async def open(cls, options: BaseModel, deps: Any) -> Any:
        raise ConfigError("There is no such collector.")


class Closing(ScriptedProvider):
    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_start_that_fails_late_closes_what_was_opened(tmp_path):
    folder = over(write(tmp_path, manifest()), telemetry={"otlp_endpoint": "http://127.0.0.1:1/v1"})
    provider = Closing("Hi")
    runtime = runtime_of(folder, provider, plugins={"exporters": {"otlp": Refusing}})
    with pytest.raises(ConfigError, match="collector"):
        await runtime.bootstrap()
    assert (runtime.is_open, provider.closed) == (False, True)


async def test_ended_runs_go_by_age_and_by_number_also_where_all_runs_are_durable(tmp_path):
    """Nothing needs to be set for that; `storage.keep_runs` and `keep_days` say how many and how long."""
    clock = ManualClock()
    folder = over(write(tmp_path, manifest()), storage={"keep_runs": 2, "keep_days": 1})
    provider = ScriptedProvider("Hi", repeat=True)
    async with runtime_of(folder, provider, clock=clock) as runtime:
        rows: list[RunRow] = []
        for n in range(4):
            clock.advance(1.0)
            rows.append(await runtime.runner.accept(runtime.agent("helper"), RunRequest("Hello", f"s-{n}")))
            await settled(runtime, rows[-1].run_id)

        async def there() -> list[str]:
            found = (await runtime.runs.list(RunQuery(*ME))).runs
            return [line["run_id"] for line in found]

        async def becomes(wanted: list[str]) -> None:
            async with asyncio.timeout(PATIENCE):
                while await there() != wanted:
                    clock.advance(EXPIRY_SECONDS)
                    await asyncio.sleep(0.01)

        assert len(await there()) == 4
        await becomes([rows[3].run_id, rows[2].run_id])
        clock.advance(86_400.0)
        await becomes([])
        assert await runtime.durable.store.events(rows[3].run_id) == ()
