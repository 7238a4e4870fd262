"""kill -9 at every stage boundary of the sample workflow: only the interrupted stage runs again (E56)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.access.scopes import Viewer
from astromesh.runtime import task_log
from astromesh.runtime.engine import AgentRuntime
from tests.conftest import ServerFactory
from tests.integration.agents_folder import manifest, write
from tests.integration.workflow.folders import sample, small
from tests.platform.astromesh import PROGRAM
from tests.platform.processes import plain_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("place", [task_log.STAGE_DONE, task_log.STAGE_KEPT])
def test_a_task_that_is_killed_anywhere_ends_as_if_nothing_had_happened(
    tmp_path: Path, subtests: pytest.Subtests, place: str
) -> None:
    """Once before and once behind a stage's commit: same path, same output, replayable."""
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
    every = os.environ.get("ASTROMESH_EVERY_CUT")
    assert (len(told["deaths"]), len(whole["path"])) == (14 if every else 5, 14)
    for death in told["deaths"]:
        with subtests.test(f"{place}:{death['n']}"):
            assert death["signal"] == signal.SIGKILL
            assert (death["status"], death["path"], death["output"]) == (
                "success", whole["path"], whole["output"],
            )  # fmt: skip
            assert death["kept"] < death["n"] or place == task_log.STAGE_KEPT
            assert len(death["all"]) == len(whole["all"]), "no finished call of a model is made again"
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


# -- operations that end their process (E56) ----------------------------------------------------------------

FATAL = """
import argparse, asyncio, os, pathlib, signal

def note(input, context):
    with open(input["log"], "a") as log:
        log.write(f"{os.getpid()} {context.attempt} {context.idempotency_key}\\n")

def fatal(input, context, tools):
    note(input, context)
    if context.attempt <= input["deaths"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()

async def parse(input, context, tools):
    stray = asyncio.create_task(leave())
    await asyncio.sleep(0.01)
    argparse.ArgumentParser().parse_args(["--unknown"])

async def leave():
    raise SystemExit(3)

async def until_go(input, context, tools):
    note(input, context)
    while not pathlib.Path(input["go"]).exists():
        await asyncio.sleep(0.01)
    return os.getpid()

async def hold(input, context, tools):
    await until_go(input, context, tools)
    return input
"""


class Fatal:
    """A server with the workflow `s → x → e`, whose stage x may end its process; the log has its attempts."""

    def __init__(self, tmp_path: Path, forked_server: ServerFactory, op: str, then: str = "") -> None:
        config = small(tmp_path / "config", op=op)
        if then:  # a stage y behind x
            file = config / "workflows" / "small" / "workflow.yaml"
            y = f"  - {{id: y, kind: deterministic, role: linear, context: none, op: 'ops:{then}'}}\nedges:"
            text = file.read_text().replace("edges:", y).replace("to: e}", "to: y}\n  - {from: y, to: e}")
            file.write_text(text)
        (config / "workflows" / "small" / "ops.py").write_text(FATAL)
        self._log, self.go = tmp_path / "attempts", tmp_path / "go"
        self.server = forked_server(config)

    def accept(self, deaths: int = 0) -> str:
        body = {"input": {"log": str(self._log), "go": str(self.go), "deaths": deaths}}
        url = f"{self.server.url}/v1/workflows/small/runs"
        task_id: str = httpx.post(url, json=body, timeout=30).json()["task_id"]
        return task_id

    def attempts(self) -> list[tuple[int, int, str]]:
        """Process, attempt and idempotency key, in order."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [(int(pid), int(n), key) for pid, n, key in map(str.split, lines)]

    def wait_for_attempts(self, count: int) -> None:
        end = time.monotonic() + 60
        while len(self.attempts()) < count:
            assert time.monotonic() < end, self.server.log()[-4000:]
            time.sleep(0.01)

    def drain(self) -> None:
        """SIGTERM; returns when the server refuses runs, and waits."""
        self.server.signal(signal.SIGTERM)
        end = time.monotonic() + 60
        while httpx.get(f"{self.server.url}/health/ready", timeout=30).status_code != 503:
            assert time.monotonic() < end, self.server.log()[-4000:]
            time.sleep(0.01)

    def ended(self, task_id: str) -> dict[str, Any]:
        url = f"{self.server.url}/v1/tasks/{task_id}"
        with httpx.stream("GET", f"{url}/events", timeout=120) as events:
            events.read()
        found: dict[str, Any] = httpx.get(url, timeout=30).json()
        return found


def test_an_operation_that_kills_the_server_runs_again_in_a_process_of_its_own(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    fatal = Fatal(tmp_path, forked_server, "fatal")
    task_id = fatal.accept(deaths=1)
    fatal.server.wait()
    killed = fatal.server.pid
    fatal.server.start()
    task = fatal.ended(task_id)
    (first, second), server = fatal.attempts(), fatal.server.pid
    assert (first[:2], second[1]) == ((killed, 1), 2)
    assert first[2] == second[2], "the idempotency key is the same in every attempt"
    assert (task["status"], task["output"]) == ("success", second[0])
    assert second[0] not in (killed, server)
    following = fatal.accept()
    assert fatal.ended(following)["output"] == server, "no other Task is suspected"


def test_an_operation_that_kills_every_process_is_a_failed_stage_and_the_server_lives(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    """It kills the server once, and three processes of its own after that."""
    fatal = Fatal(tmp_path, forked_server, "fatal")
    task_id = fatal.accept(deaths=99)
    fatal.server.wait()
    fatal.server.start()
    server = fatal.server.pid
    task = fatal.ended(task_id)
    assert (task["status"], task["error"]["code"], task["error"]["stage"]) == ("failure", "crashed", "x")
    assert [n for _, n, _ in fatal.attempts()] == [1, 2, 3, 4]
    assert fatal.server.running and fatal.server.pid == server
    assert server not in [pid for pid, _, _ in fatal.attempts()]


FATAL_NODE = """
import ctypes, json, os, pathlib

def paid(state):
    with open(json.loads(state.question)["log"], "a") as log:
        log.write("paid\\n")

async def fatal(state):
    told = json.loads(state.question)
    log = pathlib.Path(told["log"])
    with log.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    if len(log.read_text().splitlines()) - 1 <= told["deaths"]:
        ctypes.string_at(0)
    return str(os.getpid())
"""
FATAL_GRAPH: dict[str, Any] = {
    "apiVersion": "astromesh/v1",
    "kind": "Graph",
    "metadata": {"name": "fatal"},
    "spec": {
        "nodes": [
            {"name": "paid", "kind": "function", "function": {"python": "fatal_nodes:paid"}},
            {
                "name": "fatal",
                "kind": "function",
                "function": {"python": "fatal_nodes:fatal"},
                "effect": "read",
            },
        ],
        "edges": [{"from": "paid", "to": "fatal"}],
    },
}


def fatal_agent(config: Path) -> Path:
    """The workflow `s → x → e`, whose stage x is an agent with a graph of Python functions."""
    small(config)
    file = config / "workflows" / "small" / "workflow.yaml"
    plain = "kind: deterministic, role: linear, context: none, op: 'ops:double'"
    file.write_text(file.read_text().replace(plain, "kind: agent, role: linear, context: none, agent: fatal"))
    spec = {"orchestration": {"pattern": "graph", "graph": "fatal"}}
    (config / "fatal_nodes.py").write_text(FATAL_NODE)
    write(config, manifest("fatal", model={"primary": {"provider": "embedded"}}, **spec))
    (config / "graphs").mkdir()
    (config / "graphs" / "fatal.graph.yaml").write_text(json.dumps(FATAL_GRAPH))
    return config


@pytest.mark.parametrize("deaths", [2, 99])
def test_an_agent_that_kills_the_server_runs_again_in_a_process_of_its_own(
    tmp_path: Path, forked_server: ServerFactory, deaths: int
) -> None:
    """An `async def` node ends the server once; its finished nodes and the server's other Tasks go on."""
    server = forked_server(fatal_agent(tmp_path / "config"))

    def accepted(deaths: int, log: Path) -> str:
        body = {"input": {"log": str(log), "deaths": deaths}}
        url = f"{server.url}/v1/workflows/small/runs"
        task_id: str = httpx.post(url, json=body, timeout=30).json()["task_id"]
        return f"{server.url}/v1/tasks/{task_id}"

    def ended(url: str) -> dict[str, Any]:
        with httpx.stream("GET", f"{url}/events", timeout=120) as events:
            events.read()
        found: dict[str, Any] = httpx.get(url, timeout=30).json()
        return found

    log = tmp_path / "attempts"
    url = accepted(deaths, log)
    server.wait()
    killed = server.pid
    server.start()
    healthy = server.pid
    other = ended(accepted(0, tmp_path / "other"))
    task = ended(url.replace(url.partition("/v1/")[0], server.url))
    paid, *attempts = log.read_text().splitlines()
    assert (paid, int(attempts[0])) == ("paid", killed)
    assert server.running and server.pid == healthy
    assert (other["status"], int(other["output"])) == ("success", healthy)
    assert not {healthy, killed} & set(map(int, attempts[1:]))
    if deaths == 2:
        assert (task["status"], str(task["output"])) == ("success", attempts[-1])
        assert len(attempts) == 3
    else:
        assert (task["status"], task["error"]["code"], task["error"]["stage"]) == ("failure", "crashed", "x")
        assert len(attempts) == 4


def test_a_server_that_is_killed_again_and_again_fails_no_stage(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    fatal = Fatal(tmp_path, forked_server, "until_go")
    task_id = fatal.accept()
    for count in range(1, 5):
        fatal.wait_for_attempts(count)
        fatal.server.kill()
        fatal.server.start()
    fatal.wait_for_attempts(5)
    fatal.go.touch()
    task = fatal.ended(task_id)
    assert (task["status"], task["output"]) == ("success", fatal.attempts()[-1][0])


def test_a_server_that_ends_in_order_suspects_no_stage(tmp_path: Path, forked_server: ServerFactory) -> None:
    fatal = Fatal(tmp_path, forked_server, "until_go")
    task_id = fatal.accept()
    fatal.wait_for_attempts(1)
    fatal.drain()
    assert fatal.server.terminate() == 0, "a second SIGTERM ends the wait for the stage"
    fatal.server.start()
    fatal.wait_for_attempts(2)
    fatal.go.touch()
    assert fatal.ended(task_id)["output"] == fatal.server.pid, "it runs in the server"


def test_sigterm_waits_for_the_stage_that_runs_and_begins_no_further_one(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    """The stage ends once, here; the stage behind it runs once, after the restart."""
    fatal = Fatal(tmp_path, forked_server, "hold", then="hold")
    task_id = fatal.accept()
    fatal.wait_for_attempts(1)
    fatal.drain()
    assert len(fatal.attempts()) == 1 and fatal.server.running
    fatal.go.touch()
    assert fatal.server.wait() == 0
    [(first, *_)] = fatal.attempts()
    fatal.server.start()
    task = fatal.ended(task_id)
    assert (task["status"], task["metadata"]["path"]) == ("success", ["s", "x", "y", "e"])
    assert [(pid, n) for pid, n, _ in fatal.attempts()] == [(first, 1), (fatal.server.pid, 1)]


def test_sigterm_lets_a_worker_end_the_stage_that_runs(tmp_path: Path, forked_server: ServerFactory) -> None:
    fatal = Fatal(tmp_path, forked_server, "hold", then="hold")
    task_id = fatal.accept()
    fatal.wait_for_attempts(1)
    fatal.drain()
    assert fatal.server.terminate() == 0
    config = tmp_path / "config"
    command = [PROGRAM, "worker", "--config", str(config), "--data", str(fatal.server.data)]
    worker = subprocess.Popen(command, env=plain_environment(tmp_path / "home", {}), cwd=ROOT)
    try:
        fatal.wait_for_attempts(2)
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        fatal.go.touch()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
    fatal.server.start()
    assert fatal.ended(task_id)["status"] == "success"
    assert [(pid, n) for pid, n, _ in fatal.attempts()[1:]] == [(worker.pid, 2), (fatal.server.pid, 1)]


def test_argparse_in_an_operation_and_a_stray_task_that_exits_leave_the_server_alone(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    fatal = Fatal(tmp_path, forked_server, "parse")
    server = fatal.server.pid
    task = fatal.ended(fatal.accept())
    assert (task["status"], task["error"]["code"]) == ("failure", "operation_error")
    assert task["error"]["message"] == "SystemExit: 2"
    assert fatal.server.running and fatal.server.pid == server
    assert "task_exited" in fatal.server.log()


def _paused(url: str, stage: str) -> list[dict[str, object]]:
    """The paused stages of a Task, as soon as this one is among them."""
    for _ in range(600):
        found: list[dict[str, object]] = httpx.get(url, timeout=30).json()["paused"]
        if any(one["stage"] == stage for one in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{stage} never paused")


def test_a_pause_and_a_question_survive_kill_9(tmp_path: Path, forked_server: ServerFactory) -> None:
    """The stage is paused in the next process, then a person answers there what was asked before."""
    config = small(tmp_path / "config", extra="task: {pause_before: [e]}\n")
    file = config / "workflows" / "small" / "workflow.yaml"
    file.write_text(file.read_text().replace("op: 'ops:double'", "human: {instructions: Double it.}"))
    server = forked_server(config)
    task_id = httpx.post(f"{server.url}/v1/workflows/small/runs", json={"input": 21}, timeout=30).json()[
        "task_id"
    ]
    url, approvals = f"{server.url}/v1/tasks/{task_id}", f"{server.url}/v1/approvals"
    while not (asked := httpx.get(approvals, timeout=30).json()["approvals"]):
        time.sleep(0.05)
    server.kill()
    server.start()
    assert httpx.get(approvals, timeout=30).json()["approvals"] == asked
    httpx.post(f"{url}/decide", json={"decision": "answer", "answer": 42}, timeout=30).raise_for_status()
    before = _paused(url, "e")
    server.kill()
    server.start()
    assert _paused(url, "e") == before
    httpx.post(f"{url}/resume", timeout=30).raise_for_status()
    with httpx.stream("GET", f"{url}/events", timeout=60) as events:
        events.read()
    task = httpx.get(url, timeout=30).json()
    assert (task["status"], task["output"], task["metadata"]["path"]) == ("success", 42, ["s", "x", "e"])


async def test_the_inspector_reaches_a_task_of_another_process(
    tmp_path: Path, forked_server: ServerFactory
) -> None:
    """Pause, step, resume and replay in one process, the Task in another, over one data folder."""
    config = small(tmp_path / "config", op="wait")
    server, go = forked_server(config), tmp_path / "go"
    url, me = f"{server.url}/v1/workflows/small/runs", Viewer("default", None)
    accepted = httpx.post(url, json={"input": {"go": str(go)}}, timeout=30)
    task_id = accepted.json()["task_id"]
    async with AgentRuntime(config, data_dir=server.data) as runtime, asyncio.timeout(120):
        tasks = runtime.workflows.tasks
        await tasks.pause(task_id, me, ["e"])
        go.touch()
        [paused] = await tasks.until_paused(task_id, me)
        await tasks.pause(task_id, me)
        await tasks.step(task_id, me)
        task = await tasks.ended(task_id, me)
        replay = await runtime.workflows.replays.replay(task_id, me)
    assert (paused["stage"], task["status"], replay["same"]) == ("e", "success", True)
    assert httpx.get(f"{server.url}/v1/tasks/{task_id}", timeout=30).json()["output"] == {"go": str(go)}
