"""kill -9 at every stage boundary of the sample workflow: only the interrupted stage runs again (E56)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from astromesh.access.scopes import Viewer
from astromesh.runtime import task_log
from astromesh.runtime.engine import AgentRuntime
from tests.conftest import ServerFactory
from tests.integration.workflow.folders import sample, small
from tests.platform.astromesh import PROGRAM
from tests.platform.processes import plain_environment

ROOT = Path(__file__).parents[2]
#: calls of models in one execution of a stage
CALLS = {"triage": 1, "review": 2, "assess": 1}


@pytest.mark.parametrize("place", [task_log.STAGE_DONE, task_log.STAGE_KEPT])
def test_a_task_that_is_killed_anywhere_ends_as_if_nothing_had_happened(
    tmp_path: Path, subtests: pytest.Subtests, place: str
) -> None:
    """Stage by stage, once before and once behind its commit: same path, same output, replayable."""
    config = sample(tmp_path / "config")
    scheduler = config / "workflows" / "contract_review" / "scheduler.yaml"
    scheduler.write_text("scheduler: {max_stage_concurrency: 1}\n")
    (tmp_path / "data").mkdir()
    program = [sys.executable, "-m", "tests.reliability.task_deaths"]
    ran = subprocess.run(
        [*program, config, tmp_path / "data", "contract_review", place],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    whole = told["whole"]
    assert len(told["deaths"]) == len(whole["path"]) == 14
    for death in told["deaths"]:
        with subtests.test(f"{place}:{death['n']}"):
            assert death["signal"] == signal.SIGKILL
            assert (death["status"], death["path"], death["output"]) == (
                "success", whole["path"], whole["output"],
            )  # fmt: skip
            assert death["kept"] < death["n"] or place == task_log.STAGE_KEPT
            kept = whole["path"][: death["kept"]]
            answered = sum(CALLS.get(stage.partition("#")[0], 0) for stage in kept)
            # what was asked for stages on disk is not asked again, and all else is
            assert len(death["all"]) - len(whole["all"]) == len(death["before"]) - answered
            assert death["same"] is not False
    assert any(death["same"] for death in told["deaths"])


def test_a_server_that_is_killed_takes_up_its_tasks_again(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    """Accepted over HTTP, killed in the middle of a stage's commit, restarted: the Task ends."""
    config = small(tmp_path / "config")
    server = forked_server(config, env={"ASTROMESH_TASK_FAILPOINT": "stage_kept:2"})
    accepted = httpx.post(f"{server.url}/v1/workflows/small/runs", json={"input": 21}, timeout=30)
    assert accepted.status_code == 202
    server.wait()
    assert server.exit_code == -signal.SIGKILL
    server.disarm("ASTROMESH_TASK_FAILPOINT")
    server.start()
    url = f"{server.url}/v1/tasks/{accepted.json()['task_id']}"
    with httpx.stream("GET", f"{url}/events", timeout=60) as events:
        assert events.read().rstrip().splitlines()[-2] == b"event: task.finished"
    task = httpx.get(url, timeout=30).json()
    assert (task["status"], task["output"], task["metadata"]["path"]) == ("success", 42, ["s", "x", "e"])


async def test_a_worker_goes_on_with_the_tasks_of_a_dead_server(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    """`astromesh worker` on the same data ends what a server that was killed had accepted."""
    config = small(tmp_path / "config")
    server = forked_server(config, env={"ASTROMESH_TASK_FAILPOINT": "stage_kept:2"})
    url = f"{server.url}/v1/workflows/small/runs"
    task_id = httpx.post(url, json={"input": 21}, timeout=30).json()["task_id"]
    server.wait()
    command = [PROGRAM, "worker", "--config", str(config), "--data", str(server.data)]
    worker = subprocess.Popen(command, env=plain_environment(tmp_path / "home", {}), cwd=ROOT)
    try:
        async with AgentRuntime(config, data_dir=server.data) as runtime, asyncio.timeout(120):
            task = await runtime.workflows.tasks.ended(task_id, Viewer("default", None))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    assert (task["status"], task["output"], task["metadata"]["path"]) == ("success", 42, ["s", "x", "e"])
