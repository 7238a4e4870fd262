"""Tasks outlive their manifests: what ran stays readable, and what was accepted goes on.

A deployment is a second runtime over the same data, after the folder has changed.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from astromesh.access.scopes import Viewer
from astromesh.cli.commands import workflow as command
from astromesh.durable.leases import LEASE_SECONDS
from astromesh.runtime.records import TaskRequest
from astromesh.workflow import Engine
from astromesh.workflow.history import Recording
from astromesh.workflow.project import restore_project
from tests.integration.agents_folder import LaterClock, client_of, manifest, write
from tests.integration.workflow.folders import ENDED, events_of, runtime_with, until

OPS = """
import asyncio, pathlib

def one(input, context, tools):
    return {**input, "one": 1}

async def wait(input, context, tools):
    while not pathlib.Path(input["go"]).exists():
        await asyncio.sleep(0.01)
    return {**input, "waited": True}

def two(input, context, tools):
    return {**input, "two": 2}
"""
NODES = """version: 1
workflow: steps
nodes:
  - {id: s, kind: deterministic, role: start, default: true, context: none}
  - {id: one, kind: deterministic, role: linear, context: none, op: 'ops:one'}
  - {id: wait, kind: deterministic, role: linear, context: none, op: 'ops:wait', idempotent: true}
  - {id: two, kind: deterministic, role: linear, context: none, op: 'ops:two'}
  - {id: e, kind: deterministic, role: exit, context: none}
edges:
  - {from: s, to: one}
  - {from: one, to: wait}
  - {from: wait, to: two}
  - {from: two, to: e}
"""
EVALUATIONS = """suites:
  - name: all
    cases: [{id: a, input: {}, assertions: [{type: status, expected: success}]}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config" / "workflows" / "steps"
    folder.mkdir(parents=True)
    (folder / "workflow.yaml").write_text(NODES)
    (folder / "ops.py").write_text(OPS)
    (folder / "evaluations.yaml").write_text(EVALUATIONS)
    return tmp_path / "config"


def edit(file: Path, change: Callable[[str], str]) -> None:
    file.write_text(change(file.read_text()))


async def ended(config: Path, go: Path) -> dict[str, Any]:
    """A Task that has ended, with all that can be read of it, before anything changes."""
    go.touch()
    async with client_of(runtime_with(config)) as client:
        task = (await client.post("/v1/workflows/steps/run", json={"input": {"go": str(go)}})).json()
        return await read_all(client, task["task_id"])


async def read_all(client: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {"task_id": task_id}
    for part in ("trace", "artifacts", "manifest"):
        answer = await client.get(f"/v1/tasks/{task_id}/{part}")
        assert answer.status_code == 200, answer.text
        found[part] = answer.json()
    events = await client.get(f"/v1/tasks/{task_id}/events")
    assert events.status_code == 200
    replay = await client.post(f"/v1/tasks/{task_id}/replay", json={"stage": "wait"})
    assert replay.status_code == 200, replay.text
    return {**found, "events": events_of(events.text), "replay": replay.json()["recorded"]}


def upgrade(folder: Path) -> None:
    """The version of the engine that accepted the Tasks was another one."""
    with closing(sqlite3.connect(folder.parents[2] / "data" / "astromesh.db")) as database, database:
        database.execute(
            """UPDATE task_snapshots SET id = 'other',
            content = json_set(content, '$.provenance.engine', '0.0.1')"""
        )
        database.execute("UPDATE tasks SET snapshot = 'other'")


def comment(folder: Path) -> None:
    edit(folder / "ops.py", lambda text: f"# a comment\n{text}\n\n")


def new_case(folder: Path) -> None:
    edit(folder / "evaluations.yaml", lambda text: text.replace("id: a", "id: another"))


def other_code(folder: Path) -> None:
    edit(folder / "ops.py", lambda text: text.replace('"two": 2', '"two": 3'))


def other_stages(folder: Path) -> None:
    for old, new in (("id: two", "id: last"), ("to: two}", "to: last}"), ("from: two", "from: last")):
        edit(folder / "workflow.yaml", lambda text: text.replace(old, new))  # noqa: B023 (called at once)


def broken(folder: Path) -> None:
    edit(folder / "workflow.yaml", lambda text: text.replace("role: exit", "role: nothing"))


@pytest.mark.parametrize("change", [upgrade, comment, new_case, other_code, other_stages, broken])
async def test_records_stay_readable_whatever_changes(
    config: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    before = await ended(config, tmp_path / "go")
    change(config / "workflows" / "steps")
    async with client_of(runtime_with(config)) as client:
        after = await read_all(client, before["task_id"])
    after["manifest"]["provenance"] = before["manifest"]["provenance"]
    assert after == before
    assert before["manifest"]["files"]["workflow.yaml"] == NODES
    assert [entry["stage_id"] for entry in after["trace"]["trace"]] == ["s", "one", "wait", "two", "e"]


async def test_records_stay_readable_when_the_workflow_is_removed(config: Path, tmp_path: Path) -> None:
    before = await ended(config, tmp_path / "go")
    shutil.rmtree(config / "workflows" / "steps")
    async with client_of(runtime_with(config)) as client:
        trace = await client.get(f"/v1/tasks/{before['task_id']}/trace")
        events = await client.get(f"/v1/tasks/{before['task_id']}/events")
        kept = await client.get(f"/v1/tasks/{before['task_id']}/manifest")
        drawn = await client.get(f"/v1/tasks/{before['task_id']}/graph")
    assert drawn.text.startswith("flowchart TD") and drawn.text.count("-->") == 4
    assert (trace.json(), events_of(events.text), kept.json()) == (
        before["trace"], before["events"], before["manifest"],
    )  # fmt: skip


@pytest.mark.parametrize("left", ["ops.py", "workflow.yaml"])
async def test_records_of_a_version_without_stored_manifests_stay_readable(
    config: Path, tmp_path: Path, left: str
) -> None:
    """Under the present manifests where they lead to these records, else as they are."""
    before = await ended(config, tmp_path / "go")
    with closing(sqlite3.connect(config.parent / "data" / "astromesh.db")) as database, database:
        database.execute("UPDATE tasks SET snapshot = '', fingerprint = 'old'")
        database.execute("DELETE FROM task_snapshots")
    if left == "ops.py":
        other_stages(config / "workflows" / "steps")
    async with client_of(runtime_with(config)) as client:
        task_id = before["task_id"]
        trace = (await client.get(f"/v1/tasks/{task_id}/trace")).json()
        events = events_of((await client.get(f"/v1/tasks/{task_id}/events")).text)
        artifacts = (await client.get(f"/v1/tasks/{task_id}/artifacts")).json()
        kept = (await client.get(f"/v1/tasks/{task_id}/manifest")).json()
        drawn = await client.get(f"/v1/tasks/{task_id}/graph")
    assert drawn.text.startswith("flowchart TD")
    assert trace["trace"] == before["trace"]["trace"] and artifacts == before["artifacts"]
    assert kept["files"] is None
    finished = [data["stage"] for _, kind, data in events if kind == "stage.finished"]
    assert finished == ["s", "one", "wait", "two", "e"]
    assert (events[0][1], events[-1][1]) == ("task.started", "task.finished")
    if left == "workflow.yaml":
        assert events == before["events"]


def fingerprint(config: Path) -> str:
    return Engine.load(config / "workflows" / "steps").project.fingerprint.value


def test_the_fingerprint_covers_what_decides_a_run(config: Path) -> None:
    folder = config / "workflows" / "steps"
    (folder / "helpers.py").write_text("FACTOR = 2\n")
    path = "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
    edit(folder / "ops.py", lambda text: f"{path}import helpers\n{text}")
    first = fingerprint(config)
    comment(folder)
    new_case(folder)
    (folder / "metrics.yaml").write_text("profiles: []\n")
    (folder / "README.py").write_text("x = 1\n")
    edit(folder / "helpers.py", lambda text: f"{text}  # two\n")
    edit(folder / "workflow.yaml", lambda text: f"# a comment\n{text}")
    assert fingerprint(config) == first
    edit(folder / "helpers.py", lambda text: text.replace("2", "3"))
    second = fingerprint(config)
    other_code(folder)
    assert len({first, second, fingerprint(config)}) == 3


def test_versions_evaluations_and_metrics_are_recorded_beside_the_fingerprint(config: Path) -> None:
    project = Engine.load(config / "workflows" / "steps").project
    upgraded = {**project.snapshot.content, "provenance": {"engine": "999.0"}}
    again = restore_project(project.folder, upgraded)
    assert again.fingerprint.value == project.fingerprint.value
    assert set(project.fingerprint.provenance) == {"engine", "adapters", "evaluations", "metrics"}
    new_case(project.folder)
    later = Engine.load(project.folder).project.fingerprint
    assert later.value == project.fingerprint.value and later.provenance != project.fingerprint.provenance


# -- payloads -----------------------------------------------------------------------------------------------

PASSES = """
def one(input, context, tools):
    return {**input, "one": 1}
"""


def four_stages(config: Path) -> Path:
    folder = config / "workflows" / "passes"
    folder.mkdir(parents=True)
    (folder / "ops.py").write_text(PASSES)
    nodes = [f"{{id: {x}, kind: deterministic, role: linear, context: none, op: 'ops:one'}}" for x in "abcd"]
    (folder / "workflow.yaml").write_text(
        "version: 1\nworkflow: passes\nnodes:\n"
        "  - {id: s, kind: deterministic, role: start, default: true, context: none}\n"
        + "".join(f"  - {node}\n" for node in nodes)
        + "  - {id: e, kind: deterministic, role: exit, context: none}\n"
        "edges: [{from: s, to: a}, {from: a, to: b}, {from: b, to: c}, {from: c, to: d}, {from: d, to: e}]\n"
    )
    return config


def stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def test_a_large_input_is_on_disk_once_however_many_stages_pass_it_on(tmp_path: Path) -> None:
    """0.9 MB that hardly compress, through four stages: at most 2 MB with journals and indexes."""
    config, data = four_stages(tmp_path / "config"), tmp_path / "data"
    text = Random(18).randbytes(450_000).hex()
    async with client_of(runtime_with(config, data_dir=data)) as client:
        before = stored_bytes(data)
        task_id = (await client.post("/v1/workflows/passes/runs", json={"input": {"text": text}})).json()
        task = await until(client, task_id["task_id"], *ENDED)
        trace = (await client.get(f"/v1/tasks/{task['task_id']}/trace")).json()["trace"]
        made = (await client.get(f"/v1/tasks/{task['task_id']}/artifacts?node=d")).json()["artifacts"]
        grown = stored_bytes(data) - before
    assert task["output"] == {"text": text, "one": 1} == made[0]["content"]
    assert all(entry["input"]["text"] == entry["output"]["text"] == text for entry in trace)
    assert len(text) == 900_000 and grown <= 2_000_000


# -- accepted Tasks go on ------------------------------------------------------------------------------------


async def interrupted(config: Path, go: Path, **more: Any) -> str:
    """A durable Task that waits in its stage `wait` when its server leaves."""
    async with client_of(runtime_with(config, **more)) as client:
        body = {"input": {"go": str(go)}}
        task_id: str = (await client.post("/v1/workflows/steps/runs", json=body)).json()["task_id"]
        async with asyncio.timeout(30):
            while len((await client.get(f"/v1/tasks/{task_id}/trace")).json()["trace"]) < 2:
                await asyncio.sleep(0.01)
    go.touch()
    return task_id


async def goes_on(config: Path, task_id: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Task at its end, and its trace, in the next runtime."""
    async with client_of(runtime_with(config, **more)) as client:
        task = await until(client, task_id, *ENDED)
        return task, (await client.get(f"/v1/tasks/{task_id}/trace")).json()


@pytest.mark.parametrize("change", [upgrade, comment, new_case, other_stages, broken])
async def test_an_accepted_task_goes_on_under_its_own_manifests(
    config: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    task_id = await interrupted(config, tmp_path / "go")
    change(config / "workflows" / "steps")
    task, trace = await goes_on(config, task_id)
    assert (task["status"], task["output"]["two"]) == ("success", 2), task
    assert [entry["stage_id"] for entry in trace["trace"]] == ["s", "one", "wait", "two", "e"]
    assert "code_changes" not in task["metadata"]
    assert task["metadata"]["run_fingerprint"] == trace["metadata"]["run_fingerprint"]


async def test_a_cancelled_task_ends_without_its_workflow(config: Path, tmp_path: Path) -> None:
    """By any process with a workflow: none may ever have this one again."""
    task_id = await interrupted(four_stages(config), tmp_path / "go")
    shutil.rmtree(config / "workflows" / "steps")
    with closing(sqlite3.connect(config.parent / "data" / "astromesh.db")) as database, database:
        database.execute("UPDATE tasks SET cancelling = 1")
    task, trace = await goes_on(config, task_id)
    assert (task["status"], task["error"]["code"]) == ("failure", "cancelled")
    assert [entry["stage_id"] for entry in trace["trace"]] == ["s", "one"]


async def test_changed_code_is_recorded_in_the_task(config: Path, tmp_path: Path) -> None:
    task_id = await interrupted(config, tmp_path / "go")
    other_code(config / "workflows" / "steps")
    task, _ = await goes_on(config, task_id)
    assert (task["status"], task["output"]["two"]) == ("success", 3)
    assert [change["modules"] for change in task["metadata"]["code_changes"]] == [["ops"]]
    async with client_of(runtime_with(config)) as client:
        events = events_of((await client.get(f"/v1/tasks/{task_id}/events")).text)
    assert [data["modules"] for _, kind, data in events if kind == "task.code_changed"] == [["ops"]]


async def test_changed_code_fails_the_task_where_the_manifest_says_so(config: Path, tmp_path: Path) -> None:
    folder = config / "workflows" / "steps"
    edit(folder / "workflow.yaml", lambda text: f"{text}task: {{on_code_change: fail}}\n")
    task_id = await interrupted(config, tmp_path / "go")
    other_code(folder)
    task, trace = await goes_on(config, task_id)
    assert (task["status"], task["error"]["code"]) == ("failure", "code_changed")
    assert "ops" in task["error"]["message"] and len(trace["trace"]) == 2


async def test_a_comment_is_no_change_of_code(config: Path, tmp_path: Path) -> None:
    folder = config / "workflows" / "steps"
    edit(folder / "workflow.yaml", lambda text: f"{text}task: {{on_code_change: fail}}\n")
    task_id = await interrupted(config, tmp_path / "go")
    comment(folder)
    task, _ = await goes_on(config, task_id)
    assert task["status"] == "success"


@pytest.mark.parametrize("in_manifest", [False, True])
async def test_a_removed_operation_fails_the_task_and_is_named(
    config: Path, tmp_path: Path, in_manifest: bool
) -> None:
    """Whether the present manifest still names it, and is broken, or not."""
    folder = config / "workflows" / "steps"
    task_id = await interrupted(config, tmp_path / "go")
    edit(folder / "ops.py", lambda text: text.replace("def two", "def three"))
    if not in_manifest:
        edit(folder / "workflow.yaml", lambda text: text.replace("ops:two", "ops:three"))
    task, trace = await goes_on(config, task_id)
    assert (task["status"], task["error"]["code"]) == ("failure", "missing")
    assert "ops:two" in task["error"]["message"]
    assert [entry["stage_id"] for entry in trace["trace"]][:3] == ["s", "one", "wait"]


@pytest.fixture
def log() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as found:
        yield found


async def test_a_module_that_cannot_be_imported_keeps_a_task_waiting_until_it_can(
    config: Path, tmp_path: Path, log: list[MutableMapping[str, Any]]
) -> None:
    """In the same process and without a restart; meanwhile it can be read."""
    folder = config / "workflows" / "steps"
    task_id = await interrupted(config, tmp_path / "go")
    good = (folder / "ops.py").read_text()
    (folder / "ops.py").write_text(f"def two(:\n{good}")
    clock = LaterClock()
    async with client_of(runtime_with(config, clock=clock)) as client:
        async with asyncio.timeout(60):
            while not (waits := [line for line in log if line["event"] == "task_waits_for_its_code"]):
                await asyncio.sleep(0.05)
        assert waits[0]["task_id"] == task_id
        assert waits[0]["error"].startswith("the module 'ops' cannot be imported: SyntaxError")
        assert (await client.get(f"/v1/tasks/{task_id}")).json()["status"] == "running"
        [listed] = (await client.get("/v1/workflows")).json()["workflows"]
        assert listed["status"] == "broken" and "ops" in listed["errors"][0]
        refused = await client.post("/v1/workflows/steps/runs", json={"input": {}})
        assert refused.status_code == 503 and "workflow_unavailable" in refused.text
        (folder / "ops.py").write_text(good)
        clock.later = LEASE_SECONDS
        task = await until(client, task_id, *ENDED)
        assert (task["status"], task["output"]["two"]) == ("success", 2)


async def test_a_module_that_breaks_in_a_running_server_keeps_a_task_waiting_too(
    config: Path, tmp_path: Path
) -> None:
    """The code of a stage is imported with its first Task; a Task with a caller fails, and says why."""
    folder = config / "workflows" / "steps"
    (tmp_path / "go").touch()
    body, clock = {"input": {"go": str(tmp_path / "go")}}, LaterClock()
    async with client_of(runtime_with(config, clock=clock)) as client:
        good = (folder / "ops.py").read_text()
        (folder / "ops.py").write_text(f"def two(:\n{good}")
        failed = (await client.post("/v1/workflows/steps/run", json=body)).json()
        task_id = (await client.post("/v1/workflows/steps/runs", json=body)).json()["task_id"]
        await asyncio.sleep(0.2)
        assert (await client.get(f"/v1/tasks/{task_id}")).json()["status"] in ("queued", "running")
        (folder / "ops.py").write_text(good)
        clock.later = LEASE_SECONDS
        task = await until(client, task_id, *ENDED)
        again = (await client.post("/v1/workflows/steps/run", json=body)).json()
    assert (failed["status"], failed["error"]["code"]) == ("failure", "unreadable_module")
    assert (task["status"], task["output"]["two"]) == ("success", 2)
    assert again["status"] == "success"


async def test_a_task_that_waits_for_its_code_can_be_cancelled(config: Path, tmp_path: Path) -> None:
    task_id = await interrupted(config, tmp_path / "go")
    edit(config / "workflows" / "steps" / "ops.py", lambda text: f"def two(:\n{text}")
    clock = LaterClock()
    async with client_of(runtime_with(config, clock=clock)) as client:
        cancel = asyncio.create_task(client.post(f"/v1/tasks/{task_id}/cancel"))
        async with asyncio.timeout(60):
            while (task := (await client.get(f"/v1/tasks/{task_id}")).json())["status"] not in ENDED:
                clock.later += LEASE_SECONDS
                await asyncio.sleep(0.1)
        assert (await cancel).status_code == 200
        assert (task["status"], task["error"]["code"]) == ("failure", "cancelled")


async def test_a_task_that_is_cancelled_before_its_first_step_ends(config: Path) -> None:
    async with runtime_with(config) as runtime:
        row = await runtime.workflows.accept("steps", TaskRequest({"go": "never"}))
        assert runtime.workflows.stop(row.task_id)
        async with asyncio.timeout(60):
            task = await runtime.workflows.tasks.ended(row.task_id, Viewer("default", None))
    assert (task["status"], task["error"]["code"]) == ("failure", "cancelled")


async def test_a_removed_agent_fails_the_task_and_is_named(config: Path, tmp_path: Path) -> None:
    folder = config / "workflows" / "steps"
    write(config, manifest("helper"))
    plain = "{id: two, kind: deterministic, role: linear, context: none, op: 'ops:two'}"
    asks = "{id: two, kind: agent, role: linear, context: none, agent: helper}"
    edit(folder / "workflow.yaml", lambda text: text.replace(plain, asks))
    task_id = await interrupted(config, tmp_path / "go")
    shutil.rmtree(config / "agents")
    task, _ = await goes_on(config, task_id)
    assert (task["status"], task["error"]["code"]) == ("failure", "missing")
    assert "helper" in task["error"]["message"]


async def test_a_removed_tool_fails_the_task_and_is_named(config: Path, tmp_path: Path) -> None:
    folder = config / "workflows" / "steps"
    (folder / "tools.yaml").write_text("tools:\n  - {id: pay, type: python, entrypoint: 'shop:pay'}\n")
    (folder / "shop.py").write_text("def pay(): return 1\n")
    edit(folder / "workflow.yaml", lambda text: text.replace("op: 'ops:two'", "op: 'ops:two', tools: [pay]"))
    task_id = await interrupted(config, tmp_path / "go")
    (folder / "shop.py").unlink()
    task, _ = await goes_on(config, task_id)
    assert (task["status"], task["error"]["code"]) == ("failure", "missing")
    assert "'pay'" in task["error"]["message"]


async def test_a_replay_names_another_fingerprint(config: Path, tmp_path: Path) -> None:
    """A Task replays under its manifests with the present code."""
    before = await ended(config, tmp_path / "go")
    other_stages(config / "workflows" / "steps")
    other_code(config / "workflows" / "steps")
    async with client_of(runtime_with(config)) as client:
        replay = (await client.post(f"/v1/tasks/{before['task_id']}/replay")).json()
    assert replay["path"] == ["s", "one", "wait", "two", "e"]
    assert (replay["same"], replay["divergence"]["stage"]) == (False, "two")
    prints = replay["run_fingerprint"]
    assert prints["recorded"] == before["trace"]["metadata"]["run_fingerprint"]
    assert not prints["same"] and prints["present"] != prints["recorded"]


async def test_a_cassette_of_another_fingerprint_replays_and_says_so(config: Path, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    async with runtime_with(config) as runtime:
        result = await runtime.workflows.run("steps", TaskRequest({"go": str(tmp_path / "go")}))
        made = await runtime.workflows.tasks.recording(result.task_id, Viewer("default", None))
        made.write(tmp_path / "steps.cassette.json")
    edit(tmp_path / "steps.cassette.json", lambda text: text.replace(made.run_fingerprint, "f" * 64))
    async with runtime_with(config) as runtime:
        cassette = Recording.read(tmp_path / "steps.cassette.json")
        told = await runtime.workflows.replays.replay_recording("steps", cassette)
    assert told["same"] and told["divergence"] is None
    present = result.metadata["run_fingerprint"]
    assert told["run_fingerprint"] == {"recorded": "f" * 64, "present": present, "same": False}


@pytest.mark.parametrize("stage", ["", "two"])
def test_the_command_inspects_a_task_of_a_workflow_that_is_broken_now(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    before = asyncio.run(ended(config, tmp_path / "go"))
    broken(config / "workflows" / "steps")
    capsys.readouterr()
    command.inspect((config, config.parent / "data"), "steps", before["task_id"], stage, "")
    told = json.loads(capsys.readouterr().out)
    if stage:
        assert (told["recorded"], told["divergence"]) == (before["trace"]["trace"][3], None)
    else:
        assert told == before["trace"]
