"""Workflows under `serve --workers 2`: a request acts on a Task wherever it runs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.test_cli_serve import workers
from tests.conftest import ServerFactory
from tests.integration.workflow.folders import small

OPS = """
import asyncio, os, pathlib, signal, time

async def wait(input, context, tools):
    while not pathlib.Path(input["go"]).exists():
        await asyncio.sleep(0.01)
    return input

def where(input, context, tools):
    return {"pid": os.getpid(), "parent": os.getppid()}

def fatal(input, context, tools):
    if context.attempt == 1:
        while not pathlib.Path(input["go"]).exists():  # the acceptance has been answered
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getppid()
"""
#: requests, each with a connection of its own, of which either process gets some
ENOUGH = 8


def config_with(folder: Path, **operations: str) -> Path:
    """A workflow `s → x → e` for each operation of x, by name; that of `own` has a process of its own."""
    for name, operation in operations.items():
        small(folder, name, op=operation)
        home = folder / "workflows" / name
        (home / "ops.py").write_text(OPS)
        if name == "own":
            file = home / "workflow.yaml"
            file.write_text(
                file.read_text().replace("op: 'ops:where'", "op: 'ops:where', isolation: process")
            )
    return folder


def post(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = httpx.post(url, json=body or {}, timeout=60)
    answer.raise_for_status()
    return dict(answer.json())


def accepted(server: str, workflow: str, **value: Any) -> str:
    task_id = post(f"{server}/v1/workflows/{workflow}/runs", {"input": value})["task_id"]
    return f"{server}/v1/tasks/{task_id}"


def until(url: str, key: str, *, seconds: float = 60.0) -> dict[str, Any]:
    """The Task when it has something under a key."""
    end = time.monotonic() + seconds
    while not (task := dict(httpx.get(url, timeout=30).json())).get(key):
        assert time.monotonic() < end, task
        time.sleep(0.02)
    return task


def ended(url: str) -> dict[str, Any]:
    with httpx.stream("GET", f"{url}/events", timeout=120) as events:
        events.read()
    return dict(httpx.get(url, timeout=30).json())


def test_tasks_are_inspected_and_isolated_in_a_server_of_two_processes(
    tmp_path: Path, server_process: ServerFactory
) -> None:
    """Pause, step, resume, replay; and an operation with a process of its own."""
    config = config_with(tmp_path / "config", held="wait", own="where")
    server, go = server_process(config, args=["--workers", "2"]), tmp_path / "go"

    task = accepted(server.url, "held", go=str(go))
    post(f"{task}/pause", {"before": ["e"]})
    go.touch()
    paused = [until(task, "paused")["paused"] for _ in range(ENOUGH)]
    assert all([one["stage"] for one in found] == ["e"] for found in paused)
    post(f"{task}/step")
    done = ended(task)
    assert (done["status"], done["output"]) == ("success", {"go": str(go)})
    replays = [post(f"{task}/replay") for _ in range(ENOUGH)]
    assert all(replay["same"] for replay in replays), replays

    task = accepted(server.url, "held", go=str(tmp_path / "more"))
    post(f"{task}/pause")
    (tmp_path / "more").touch()
    until(task, "paused")
    post(f"{task}/resume")
    assert ended(task)["status"] == "success"

    own = ended(accepted(server.url, "own"))
    assert own["status"] == "success", own
    assert own["output"]["parent"] != server.pid, "a worker of uvicorn is the parent"
    assert Path(f"/proc/{own['output']['parent']}").exists()


def test_the_task_of_a_process_that_died_goes_on_in_the_other_one(
    tmp_path: Path, server_process: ServerFactory
) -> None:
    """In a process of its own below it, before there is a new process."""
    server = server_process(config_with(tmp_path / "config", fatal="fatal"), args=["--workers", "2"])
    end = time.monotonic() + 30
    while len(before := workers(server)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    url, task = accepted(server.url, "fatal", go=str(tmp_path / "go")), {"status": "running"}
    (tmp_path / "go").touch()
    while task["status"] in ("queued", "running") and time.monotonic() < end + 30:
        with suppress(httpx.TransportError):  # of the process that dies
            task = dict(httpx.get(url, timeout=30).json())
        time.sleep(0.05)
    assert (task["status"], str(task.get("output")) in before) == ("success", True), task
    assert server.running
