"""What another process of the same database answers about runs that are not durable."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.errors import InvalidInput, RunNotFound
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.durable.listeners import Heard

PATIENCE = 30.0
BODY = {"query": "Hello", "session_id": "s-1"}
_BODIES = {"/feedback": {"rating": 1}, "/resume": {"decision": "approve"}}


@pytest.fixture(params=("sqlite", "postgres"))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = write(tmp_path, manifest())
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": url}}}))
    return folder


async def test_the_events_of_a_plain_run_are_with_its_process_and_its_outcome_is_everywhere(
    folder: Path,
) -> None:
    one, two = (client_of(runtime_of(folder, ScriptedProvider("Hi", repeat=True))) for _ in range(2))
    async with one as here, two as there:
        path = f"/v1/runs/{(await here.post('/v1/agents/helper/run', json=BODY)).json()['run_id']}"
        async with asyncio.timeout(PATIENCE):  # its row is written beside the run
            while (await there.get(path)).status_code != 200:
                await asyncio.sleep(0.01)
        away = await there.get(f"{path}/events")
        assert (away.status_code, away.json()["code"]) == (409, "not_durable")
        assert "run.completed" in (await here.get(f"{path}/events")).text


async def test_the_events_of_an_active_plain_run_reach_a_reader_at_another_process(folder: Path) -> None:
    go_on = asyncio.Event()

    async def answers(_: Any) -> str:
        await go_on.wait()
        return "one two three"

    provider = ScriptedProvider(answers, repeat=True)
    one, two = (runtime_of(folder, provider) for _ in range(2))
    async with client_of(one) as here, client_of(two):
        await two.durable.open()  # as earlier runs have done
        asked = asyncio.create_task(here.post("/v1/agents/helper/run", json=BODY))
        async with asyncio.timeout(PATIENCE):
            while not (listed := (await here.get("/v1/runs?status=running")).json()["runs"]):
                await asyncio.sleep(0.01)
            run_id, heard = listed[0]["run_id"], Heard()
            seen = await two.runs.get(run_id, Viewer("default", "anonymous"))
            with pytest.raises(RunNotFound):  # of others
                await two.runs.get(run_id, Viewer("default", "ann"))
            leave = await two.runs.follow(run_id, Viewer("default", "anonymous"), 0, heard)
            with pytest.raises(RunNotFound):  # of others
                await two.runs.follow(run_id, Viewer("default", "ann"), 0, Heard())
            with pytest.raises(InvalidInput):
                await two.runs.follow(run_id, Viewer("default", "anonymous"), 99, Heard())
            go_on.set()
            await heard.ended.wait()
        assert leave is not None
        leave()
        assert (seen["run_id"], seen["status"], seen["session_id"]) == (run_id, "running", "s-1")
        assert [event.type for event in heard.events][:1] == ["run.started"]
        assert heard.events[-1].data["response"] == (await asked).json()["response"]
        log = one.runs.logs.find(run_id)
        assert log is not None
        assert [(e.seq, e.type) for e in heard.events] == [(e.seq, e.type) for e in log.after(0)]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "", 200),
        ("GET", "/events", 409),
        ("POST", "/feedback", 204),
        ("POST", "/cancel", 200),
        ("POST", "/resume", 409),
    ],
)
async def test_a_run_that_has_just_ended_elsewhere_is_found_by_its_id(
    tmp_path: Path, method: str, path: str, code: int
) -> None:
    """Its row is on its way: who asks is not told that there is no such run, but waits a moment."""
    write(tmp_path, manifest(memory={"episodic": {"backend": "sqlite"}}))
    one, two = (client_of(runtime_of(tmp_path, ScriptedProvider("Hi", repeat=True))) for _ in range(2))
    async with one as here, two as there:
        for _ in range(10):  # a machine that stands still for seconds may lose the row's way
            run = (await here.post("/v1/agents/helper/run", json=BODY)).json()["run_id"]
            asked = asyncio.create_task(
                there.request(method, f"/v1/runs/{run}{path}", json=_BODIES.get(path))
            )
            await asyncio.wait([asked], timeout=0.05)
            await here.get("/v1/runs")  # writes what waits
            answer = await asked
            if answer.status_code != 404:
                break
        assert answer.status_code == code, answer.text


async def test_an_id_with_nul_is_of_no_run_and_a_name_with_nul_is_refused(folder: Path) -> None:
    """The same over both databases."""
    async with client_of(runtime_of(folder, ScriptedProvider())) as client:
        await client.post("/v1/agents/helper/runs", json=BODY)  # opens the store
        for path in ("/v1/runs/%00", "/v1/runs/run_%00/events"):
            missing = await client.get(path)
            assert (missing.status_code, missing.json()["code"]) == (404, "run_not_found")
        for name in ("agent", "session"):
            refused = await client.get(f"/v1/runs?{name}=%00")
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
            assert name in refused.json()["detail"]
