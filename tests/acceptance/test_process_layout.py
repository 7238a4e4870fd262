"""The processes of docker-compose.yml from its files: server, two workers, PostgreSQL, Valkey."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.conftest import ServerFactory
from tests.platform.astromesh import CHILD, PROGRAM, ROOT
from tests.platform.processes import Command, Server, free_port, plain_environment
from tests.platform.valkey import _binary, ask

RUNS = 4
PATIENCE = 60.0


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[str]:
    """Valkey as docker/valkey.sh starts it, with the password of docker/secrets.sh."""
    subprocess.run(["sh", ROOT / "docker" / "secrets.sh", tmp_path / "secrets"], check=True)
    password = (tmp_path / "secrets" / "valkey_password").read_text()
    port, home = free_port(), tmp_path / "valkey"
    home.mkdir()
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    settings = {
        "VALKEY_DIR": str(home), "VALKEY_PORT": str(port), "VALKEY_SERVER": str(_binary()),
        "VALKEY_PASSWORD_FILE": str(tmp_path / "secrets" / "valkey_password"),
    }  # fmt: skip

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return ask(url, "PING") == "+PONG"
        return False

    command = Command(["sh", str(ROOT / "docker" / "valkey.sh")], plain_environment(home, settings), home)
    server = Server(command, home / "log", answers)
    server.start()
    yield url
    server.kill()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """What the Dockerfile copies."""
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder)
    shutil.copy(ROOT / "docker" / "runtime.yaml", folder / "runtime.yaml")
    return folder


def test_runs_that_the_server_accepted_are_done_although_it_died(
    config: Path, tmp_path: Path, valkey: str, postgres_database: str, server_process: ServerFactory
) -> None:
    secrets = tmp_path / "secrets"
    (secrets / "database_url").write_text(postgres_database)
    (secrets / "redis_url").write_text(valkey)
    env = {"ASTROMESH_SECRETS_DIR": str(secrets), "ASTROMESH_DATA_DIR": str(tmp_path / "data")}
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(two_workers(config, tmp_path, env))  # all three start at once
        server = server_process(config, env=env, args=["--host", "127.0.0.1"])
        for worker in workers:
            worker.wait_until_it_answers(60)
        key = command(config, tmp_path, env, "keys", "create", "me", "--scope", "admin")
        headers = {"authorization": f"Bearer {key}"}
        client = stack.enter_context(httpx.Client(base_url=server.url, headers=headers, timeout=60))
        ready = client.get("/health/ready")
        assert ready.status_code == 200, ready.text
        accepted = [accept(client, f"s-{n}") for n in range(RUNS)]
        server.kill()
        server.start()
        ended = [finished(client, run_id) for run_id in accepted]
        metrics = client.get("/metrics").text
        anybody = httpx.get(f"{server.url}/v1/agents", timeout=60).status_code
    assert [run["status"] for run in ended] == ["completed"] * RUNS
    assert "astromesh_runs_total" in metrics
    assert anybody == 401


def accept(client: httpx.Client, session: str) -> str:
    body = {"query": "How do I reset my password?", "session_id": session}
    answer = client.post("/v1/agents/support-agent/runs", json=body)
    assert answer.status_code == 202, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


def finished(client: httpx.Client, run_id: str) -> dict[str, str]:
    end = time.monotonic() + PATIENCE
    while True:
        run: dict[str, str] = client.get(f"/v1/runs/{run_id}").json()
        if run["status"] not in ("queued", "running") or time.monotonic() > end:
            return run
        time.sleep(0.05)


def command(config: Path, home: Path, env: dict[str, str], *argv: str) -> str:
    done = subprocess.run(
        [PROGRAM, *argv], env=environment(config, home, env), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def environment(config: Path, home: Path, env: dict[str, str]) -> dict[str, str]:
    path = f"{CHILD}{os.pathsep}{ROOT}"
    return plain_environment(home, {**env, "ASTROMESH_CONFIG_DIR": str(config), "PYTHONPATH": path})


def _works(log: Path) -> bool:
    return "executes durable runs" in log.read_text()


@contextlib.contextmanager
def two_workers(config: Path, home: Path, env: dict[str, str]) -> Iterator[list[Server]]:
    workers = []
    with contextlib.ExitStack() as stack:
        for number in range(2):
            log = home / f"worker-{number}.log"
            argv = Command([PROGRAM, "worker"], environment(config, home, env), home)
            worker = Server(argv, log, partial(_works, log))
            worker.launch()
            stack.callback(worker.kill)
            workers.append(worker)
        yield workers
        assert [worker.terminate() for worker in workers] == [0, 0]
