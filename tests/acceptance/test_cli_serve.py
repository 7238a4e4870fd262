"""`astromesh serve` as a process: what it says, when it refuses, how it ends, and API keys while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.acceptance.terminal import astromesh, environment
from tests.conftest import ServerFactory
from tests.platform.astromesh import CHILD, PROGRAM, ROOT, ServerProcess
from tests.platform.processes import spawned

AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: {name}, version: "1.0.0"}}
spec:
  model: {{primary: {{provider: embedded}}}}
  memory: {{conversational: {{backend: sqlite}}}}
"""
BROKEN = "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: broken}\nspec: {model: {}, modle: {}}\n"
RUNTIME = "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {spec}\n"
API_KEYS = "{auth: {mode: api_key}}"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "echo.agent.yaml").write_text(AGENT.format(name="echo"))
    return folder


def runtime(config: Path, spec: str) -> Path:
    (config / "runtime.yaml").write_text(RUNTIME.replace("{spec}", spec))
    return config


def refused(server: ServerProcess) -> str:
    """What a server printed that was to end with 2 instead of serving."""
    server.launch()
    assert server.wait(30) == 2, server.log()
    assert "Traceback" not in server.log()
    return server.log()


# -- what it says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["{}", API_KEYS])
def test_the_printed_lines_ask_the_agent_when_they_are_pasted(
    config: Path, server_process: ServerFactory, spec: str
) -> None:
    server = server_process(runtime(config, spec), spawn=spawned)
    assert f"astromesh listens on {server.url}" in server.log()
    assert f"astromesh chat echo --config {config}" in server.log()
    pasted = "\n".join(re.findall(r"^  ((?:export|curl) .*)$", server.log(), re.MULTILINE))
    env = environment(config.parent)
    env["PATH"] = f"{Path(PROGRAM).parent}:{env['PATH']}"
    done = subprocess.run(pasted, shell=True, capture_output=True, text=True, check=True, env=env)
    answered = json.loads(done.stdout)
    assert answered["agent"] == "echo"
    assert f"  {server.url}/console/\n" in server.log()
    assert f"link={server.url}/console/#/runs/{answered['run_id']}" in server.log()


def test_with_port_0_it_says_which_one_it_took(config: Path, server_process: ServerFactory) -> None:
    server = server_process(config, args=["--port", "0"], start=False)
    server.launch()
    url = until(lambda: (re.findall(r"listens on (\S+)", server.log()) or [""])[0])
    live = httpx.get(f"{url}/health/live", timeout=60).json()
    assert astromesh(config.parent, "--version").stdout == f"astromesh {live['version']}\n"


def test_a_development_server_records_plain_runs(config: Path, server_process: ServerFactory) -> None:
    """`make run` starts one. An agent that says otherwise is not recorded."""
    silent = AGENT.format(name="silent") + "  recording: false\n"
    (config / "agents" / "silent.agent.yaml").write_text(silent)
    server = server_process(config, args=["--dev"])
    body = {"query": "Hello", "session_id": "s"}

    def steps(agent: str) -> int:
        run_id = httpx.post(f"{server.url}/v1/agents/{agent}/run", json=body, timeout=60).json()["run_id"]
        return httpx.get(f"{server.url}/v1/runs/{run_id}/steps", timeout=60).status_code

    assert (steps("echo"), steps("silent")) == (200, 409)


def test_dev_reloads_what_is_saved_and_prints_what_a_run_cost(
    config: Path, server_process: ServerFactory
) -> None:
    """The file .env fills what the environment leaves open. Without a display no browser starts."""
    about = "  identity: {{display_name: Echo, description: '${{GREETING}} ${{OWN}} {word}'}}\n"
    file = config / "agents" / "echo.agent.yaml"
    text = AGENT.format(name="echo")
    file.write_text(text + about.format(word="before"))
    server = server_process(config, env={"OWN": "kept"}, command="dev", start=False)
    (server.home / ".env").write_text("GREETING=hello\nOWN=overridden\n")
    server.start()

    def description() -> str:
        return str(httpx.get(f"{server.url}/v1/agents/echo", timeout=60).json()["description"])

    assert description() == "hello kept before"
    file.write_text(text + about.format(word="after"))
    until(lambda: description() == "hello kept after", 60)
    file.write_text(text + "  modle: {}\n")
    until(lambda: "Did you mean `model`?" in server.log(), 60)
    body = {"query": "Hello", "session_id": "s"}
    run_id = httpx.post(f"{server.url}/v1/agents/echo/run", json=body, timeout=60).json()["run_id"]
    assert httpx.get(f"{server.url}/v1/runs/{run_id}/steps", timeout=60).status_code == 200
    until(lambda: run_id in server.log(), 60)
    (line,) = [line for line in server.log().splitlines() if run_id in line]
    link = f"{server.url}/console/#/runs/{run_id}"
    assert re.fullmatch(rf"\d\d:\d\d:\d\d echo completed  [\d.]+ s  \d+ tokens  \$0  {link}", line)


def test_sigterm_ends_it_with_0_and_without_noise(config: Path, server_process: ServerFactory) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        server = server_process(config)
        before = server.log()
        server.signal(number)
        assert server.wait(20) == 0
        assert server.log() == before


def test_logs_are_json_where_the_configuration_says_so(config: Path, server_process: ServerFactory) -> None:
    server = server_process(runtime(config, "{telemetry: {log_format: json, log_level: info}}"))
    httpx.post(
        f"{server.url}/v1/agents/echo/run", json={"query": "hi", "session_id": "s"}, timeout=60
    ).raise_for_status()
    server.terminate()
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    noted = [line for line in lines if line["event"] != "event_loop_blocked"]  # a loaded machine
    assert [(line["level"], line["event"], line["agent"]) for line in noted] == [("info", "run", "echo")]


def test_frames_are_bounded_as_bodies_are(config: Path, server_process: ServerFactory) -> None:
    server = server_process(runtime(config, "{api: {max_body_bytes: 5000}}"))
    large = {"query": "x" * 6000, "session_id": "s"}
    assert httpx.post(f"{server.url}/v1/agents/echo/run", json=large, timeout=60).status_code == 413

    async def frame() -> int:
        async with connect(f"{server.url.replace('http', 'ws')}/v1/ws/agent/echo", open_timeout=60) as ws:
            assert ws.protocol.extensions == []
            await ws.send("x" * 6000)
            await ws.wait_closed()
            return ws.close_code or 0

    assert asyncio.run(frame()) == 1009


# -- when it refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_another_address_needs_authentication(config: Path, server_process: ServerFactory, host: str) -> None:
    said = refused(server_process(config, args=["--host", host], start=False))
    assert f"Other machines can reach {host}," in said
    assert "auth: {mode: api_key}" in said


def test_the_address_of_the_configuration_is_judged_too(config: Path, server_process: ServerFactory) -> None:
    said = refused(server_process(runtime(config, "{api: {host: 0.0.0.0}}"), start=False))
    assert "Other machines can reach" in said


def test_with_authentication_another_address_will_do(config: Path, server_process: ServerFactory) -> None:
    server = server_process(runtime(config, API_KEYS), args=["--host", "0.0.0.0"])
    assert f"listens on {server.url}" in server.log()
    assert httpx.get(f"{server.url}/v1/agents", timeout=60).status_code == 401


def test_a_port_in_use_is_told_with_what_to_do(config: Path, server_process: ServerFactory) -> None:
    server = server_process(config, start=False)
    with socket.create_server(("127.0.0.1", server.port)):
        said = refused(server)
    assert f"127.0.0.1:{server.port}" in said
    assert "another process uses the port" in said


def test_faults_of_the_whole_are_told_all_at_once(config: Path, server_process: ServerFactory) -> None:
    runtime(config, "{api: {prot: 1}, auth: {mode: api_kee}}")
    said = refused(server_process(config, start=False))
    assert "Did you mean `port`?" in said
    assert "Did you mean `api_key`?" in said


def test_a_missing_folder_is_told(tmp_path: Path, server_process: ServerFactory) -> None:
    said = refused(server_process(tmp_path / "nowhere", start=False))
    assert f"no configuration folder {tmp_path / 'nowhere'}" in said
    assert "astromesh new my-agent" in said


def test_a_broken_agent_is_a_warning_and_with_strict_a_refusal(
    config: Path, server_process: ServerFactory
) -> None:
    (config / "agents" / "broken.agent.yaml").write_text(BROKEN)
    server = server_process(config, spawn=spawned)
    assert "'broken' is broken" in server.log()
    assert "broken.agent.yaml:4:" in server.log()
    ask = {"query": "hi", "session_id": "s"}
    assert httpx.post(f"{server.url}/v1/agents/broken/run", json=ask, timeout=60).status_code == 503
    assert httpx.post(f"{server.url}/v1/agents/echo/run", json=ask, timeout=30).status_code == 200
    assert "broken.agent.yaml:4:" in refused(server_process(config, args=["--strict"], start=False))


# -- several processes ---------------------------------------------------------------------------------------


def test_workers_share_the_port_their_metrics_and_end_together(
    config: Path, server_process: ServerFactory
) -> None:
    """Whichever worker is scraped, it tells of all."""
    server = server_process(config, args=["--workers", "2"], spawn=spawned)
    ask = {"query": "hi", "session_id": "s"}
    for _ in range(10):  # a connection each, so that both workers get some
        assert httpx.post(f"{server.url}/v1/agents/echo/run", json=ask, timeout=60).status_code == 200
    counted = 'astromesh_runs_total{status="completed"} 10.0'
    until(lambda: all(counted in httpx.get(f"{server.url}/metrics", timeout=30).text for _ in range(5)))
    assert server.terminate() == 0
    assert "Traceback" not in server.log()


def test_a_worker_that_dies_is_told(config: Path, server_process: ServerFactory) -> None:
    """Another takes its place, and the log has the only word of it."""
    server = server_process(config, args=["--workers", "2"])
    worker = until(lambda: next(filter(answers, workers(server)), ""))
    os.kill(int(worker), signal.SIGKILL)
    until(lambda: f"worker_died pid={worker} exit_code=-9" in server.log(), 60)
    until(lambda: worker not in workers(server) and len(workers(server)) == 2, 60)
    server.kill()


def workers(server: ServerProcess) -> list[str]:
    """Process ids of those that live; a child besides keeps count of what they share."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [pid for pid in children if b"spawn_main" in command_line(pid)]


def answers(worker: str) -> bool:
    """Whether the thread runs by which uvicorn hears a worker. Without it, uvicorn waits 30 seconds."""
    try:
        return len(list(Path(f"/proc/{worker}/task").iterdir())) > 1
    except FileNotFoundError:  # it has ended meanwhile
        return False


def command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return b""


# -- API keys ------------------------------------------------------------------------------------------------


def until(ask: Callable[[], str | bool], seconds: float = 15.0) -> str:
    """Asks until the answer is true."""
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return str(found)


@pytest.fixture
def guarded(config: Path, server_process: ServerFactory) -> ServerProcess:
    return server_process(runtime(config, API_KEYS))


def new_key(server: ServerProcess, *words: str) -> str:
    made = astromesh(server.data.parent, "keys", "create", "test", *words, "--data", str(server.data))
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def status(server: ServerProcess, token: str, agent: str = "echo") -> int:
    headers = {"authorization": f"Bearer {token}"}
    body = {"query": "hi", "session_id": "s"}
    return httpx.post(
        f"{server.url}/v1/agents/{agent}/run", json=body, headers=headers, timeout=60
    ).status_code


def socket_status(server: ServerProcess, token: str) -> int:
    async def ask() -> int:
        url = f"{server.url.replace('http', 'ws')}/v1/ws/agent/echo"
        try:
            async with connect(url, subprotocols=[f"bearer.{token}"], open_timeout=60):  # type: ignore[list-item]
                return 101
        except InvalidStatus as denied:
            return denied.response.status_code

    return asyncio.run(ask())


def test_a_running_server_takes_new_keys_and_refuses_revoked_ones(guarded: ServerProcess) -> None:
    token = new_key(guarded)
    assert status(guarded, token) == 200
    assert socket_status(guarded, token) == 101
    done = astromesh(guarded.data.parent, "keys", "revoke", token.split("_")[1], "--data", str(guarded.data))
    assert done.returncode == 0
    until(lambda: status(guarded, token) == 401)
    assert socket_status(guarded, token) == 401


def test_a_key_for_one_agent_runs_no_other(guarded: ServerProcess) -> None:
    token = new_key(guarded, "--agent", "echo")
    assert status(guarded, token) == 200
    assert status(guarded, token, "another") == 403


def test_principals_do_not_see_each_others_sessions(guarded: ServerProcess) -> None:
    tokens = [new_key(guarded, "--user", user) for user in ("ana", "ben", "ana")]
    assert [status(guarded, token) for token in tokens] == [200, 200, 200]  # each has a session of this name
    history = f"{guarded.url}/v1/agents/echo/sessions/s"
    answers = [httpx.get(history, headers={"x-api-key": token}, timeout=60).json() for token in tokens]
    assert [len(answer["turns"]) for answer in answers] == [4, 2, 4]


def test_keys_are_neither_in_the_log_nor_in_the_data(config: Path, server_process: ServerFactory) -> None:
    runtime(config, "{auth: {mode: api_key}, telemetry: {log_level: debug, log_format: json}}")
    server = server_process(config)
    token = new_key(server)
    assert status(server, token) == 200
    assert status(server, token + "x") == 401
    assert socket_status(server, token) == 101
    for path in (f"/v1/agents?api_key={token}", "/v1/nothing"):
        httpx.get(server.url + path, headers={"x-api-key": token}, timeout=60)
    server.terminate()
    secret = token.split("_")[2]
    assert secret not in server.log()
    kept = [
        file for file in server.data.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()
    ]
    assert kept == []


# -- agents made in Python -----------------------------------------------------------------------------------

APP = """
from astromesh import Agent


async def upper(request):
    return request.messages[-1].content.upper()


shout = Agent(upper, name="shout")
both = [shout, Agent(upper, name="cry")]
nothing = 3
"""


def python_path(folder: Path) -> dict[str, str]:
    (folder / "shouting.py").write_text(APP)
    return {"PYTHONPATH": f"{folder}:{CHILD}:{ROOT}"}


@pytest.mark.parametrize("more", [[], ["--workers", "2"]])
def test_agents_made_in_python_are_served(
    tmp_path: Path, server_process: ServerFactory, more: list[str]
) -> None:
    """Without a configuration, in every worker."""
    env = python_path(tmp_path)
    server = server_process(tmp_path / "none", env=env, args=["shouting:both", *more])
    assert f"astromesh listens on {server.url}" in server.log()
    for name in ("shout", "cry"):
        body = {"query": "hi", "session_id": "s"}
        assert (
            httpx.post(f"{server.url}/v1/agents/{name}/run", json=body, timeout=60).json()["response"] == "HI"
        )


def test_they_stand_beside_the_agents_of_the_configuration(
    config: Path, tmp_path: Path, server_process: ServerFactory
) -> None:
    server = server_process(config, env=python_path(tmp_path), args=["shouting:shout"])
    agents = httpx.get(f"{server.url}/v1/agents", timeout=60).json()["agents"]
    assert sorted(one["name"] for one in agents) == ["echo", "shout"]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("shouting", "Write MODULE:NAME"),
        ("shouting:shuot", "Did you mean `shout`?"),
        ("shouting:nothing", "is not an agent"),
        ("whispering:shout", "There is no module 'whispering'"),
    ],
)
def test_what_is_no_agent_is_named(
    tmp_path: Path, server_process: ServerFactory, named: str, said: str
) -> None:
    server = server_process(tmp_path, env=python_path(tmp_path), args=[named], start=False)
    assert said in refused(server)
