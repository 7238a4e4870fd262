"""Agents that kill their process: they end the server once, three times at most, and no other run with it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.integration.agents_folder import manifest, write
from tests.platform.model import MockModel
from tests.platform.processes import answers_http
from tests.reliability.calls import call, events_of, until
from tests.reliability.payment_agent import LEASE

TOOLS = '''
import asyncio, os, pathlib, signal
from astromesh import ToolContext

def die_alone(query: str) -> str:
    """Ends its process."""
    os.kill(os.getpid(), signal.SIGKILL)

async def die(query: str, context: ToolContext) -> str:
    """Ends its process. What takes the context runs in the server."""
    os.kill(os.getpid(), signal.SIGKILL)

async def wait(query: str) -> str:
    """Waits for a file."""
    pathlib.Path(os.environ["GO"] + ".begun").touch()
    while not pathlib.Path(os.environ["GO"]).exists():
        await asyncio.sleep(0.01)
    return "done"
'''


def agents(config: Path, endpoint: str) -> Path:
    config.mkdir(parents=True)
    (config / "run_death_tools.py").write_text(TOOLS)
    for name in ("die", "die_alone", "wait"):
        tool = {"name": name, "type": "internal", "function": f"run_death_tools:{name}", "effect": "read"}
        model = {"provider": "openai", "model": "mock+tools=1", "endpoint": endpoint, "api_key": "none"}
        write(config, manifest(name, model={"primary": model}, tools=[tool]))
    return config


def test_a_tool_that_killed_its_server_runs_again_in_a_worker_process(
    tmp_path: Path, mock_llm: MockModel, forked_server: Any
) -> None:
    """The model reads how it ended, and the run goes on."""
    server = forked_server(agents(tmp_path / "config", mock_llm.url), env=LEASE)
    body = {"query": "hi", "session_id": "s"}
    run_id = call(f"{server.url}/v1/agents/die_alone/runs", body)["run_id"]
    assert server.wait(60) == -signal.SIGKILL
    server.start()

    def ended() -> dict[str, Any] | None:
        run = dict(call(f"{server.url}/v1/runs/{run_id}"))
        return run if run["finished_at"] else None

    run = until(ended, "the run did not end")
    finished = [data for _, name, data in events_of(server.url, run_id) if name == "tool.finished"]
    assert (run["status"], [data["ok"] for data in finished]) == ("completed", [False])
    assert server.running


def test_a_read_tool_that_kills_its_process_ends_the_server_three_times_and_fails_alone(
    tmp_path: Path, mock_llm: MockModel, forked_server: Any
) -> None:
    """A slow run beside it goes on although two of the deaths are also its own."""
    go = tmp_path / "go"
    server = forked_server(agents(tmp_path / "config", mock_llm.url), env={"GO": str(go), **LEASE})

    def accepted(agent: str) -> str:
        body = {"query": "hi", "session_id": agent}
        return str(call(f"{server.url}/v1/agents/{agent}/runs", body)["run_id"])

    def run(run_id: str) -> dict[str, Any]:
        return dict(call(f"{server.url}/v1/runs/{run_id}"))

    slow = accepted("wait")
    until((tmp_path / "go.begun").exists, "the slow run did not call its tool")
    fatal = accepted("die")
    for _ in range(2):
        assert server.wait(60) == -signal.SIGKILL
        server.launch()
    until(lambda: answers_http(f"{server.url}/health/live"), "the server did not start")
    until(lambda: run(slow)["status"] == "running", "the slow run did not go on")
    assert run(fatal)["status"] == "queued"
    go.touch()
    assert server.wait(60) == -signal.SIGKILL
    server.start()
    ended = until(lambda: (found := run(fatal))["finished_at"] and found, "the fatal run did not end")
    assert (ended["status"], ended["error"]["code"]) == ("failed", "crashed")
    done = until(lambda: (found := run(slow))["finished_at"] and found, "the slow run did not end")
    assert done["status"] == "completed"
    assert server.running
