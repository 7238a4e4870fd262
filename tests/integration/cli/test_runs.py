"""`astromesh runs` on the store itself and over a server, while runs go on in another process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from astromesh.access.audit import AuditFilter, AuditLog
from astromesh.cli.commands.access import shell_user
from astromesh.cli.main import complete_app
from astromesh.errors import Interrupted, InvalidInput, NotWaiting, RunNotFound, UpstreamError
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.testing import RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import ToolCall
from tests.integration.agents_folder import manifest, runtime_of, served, write

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}}
PATIENCE = 30.0


def empty(folder: Path) -> list[str]:
    """Options: the store of a folder whose agents the command need not open."""
    return ["--config", str(folder), "--data", str(folder / "data")]


async def cli(*args: str) -> Any:
    """The result of a command in a thread, so that the runtime of the test goes on."""
    result = await asyncio.to_thread(CliRunner().invoke, complete_app(), ["runs", *args, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])  # before it, the runtime's log


async def text_of(*args: str) -> list[str]:
    """The lines that a command prints for people."""
    result = await asyncio.to_thread(CliRunner().invoke, complete_app(), ["runs", *args])
    assert result.exit_code == 0, result.output
    return [*result.stdout.splitlines()]


def runtime(folder: Path, provider: ScriptedProvider) -> AgentRuntime:
    tool = RecordingTool("lookup", lambda **given: f"found {given}", parameters=QUERY)
    return runtime_of(folder, provider, plugins={"tools": {"lookup": plugin_of(tool)}})


def waiting_agent() -> dict[str, Any]:
    tool = {"name": "lookup", "type": "lookup", "effect": "write", "approval": "required"}
    return manifest("careful", tools=[tool])


async def until(one: AgentRuntime, run_id: str, status: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (row := await one.durable.store.get(run_id)) is None or row.status != status:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("remote", [False, True], ids=("store", "server"))
async def test_runs_are_listed_shown_decided_and_cancelled(tmp_path, remote):
    folder = write(tmp_path, waiting_agent(), manifest())
    stuck = asyncio.Event()

    async def hangs(_: Any) -> str:
        stuck.set()
        await asyncio.Event().wait()
        return ""

    call = [ToolCall("c1", "lookup", '{"query": "a"}')]
    provider = ScriptedProvider(call, "all done", hangs)
    one = runtime(folder, provider)
    async with served(one) as address:
        at = ["--url", f"http://{address}"] if remote else empty(folder)
        row = await one.runner.accept(one.agent("careful"), RunRequest("Do it", "s-1"))
        await until(one, row.run_id, "waiting")
        [listed] = await cli("list", "--status", "waiting", *at)
        assert (listed["run_id"], listed["waiting_for"]["name"]) == (row.run_id, "lookup")
        with pytest.raises((InvalidInput, UpstreamError), match=r"query: 5 is not of type"):
            await cli("resume", row.run_id, "approve", "--arguments", '{"query": 5}', *at)
        await cli("resume", row.run_id, "approve", "--arguments", '{"query": "b"}', *at)
        await until(one, row.run_id, "completed")
        shown = await cli("show", row.run_id, *at)
        assert shown["result"]["response"] == "all done"
        [decided] = shown["decisions"]
        assert (decided["arguments"], decided["edited"]) == ({"query": "a"}, {"query": "b"})
        assert decided["by"] == ("anonymous" if remote else shell_user())
        keys = ("run_id", "agent", "session_id", "status", "created_at", "finished_at")
        assert (await text_of("show", row.run_id, *at))[:6] == [f"{key + ':':14}{shown[key]}" for key in keys]
        assert "b" in next(m.content for m in provider.requests[1].messages if m.role == "tool")
        plain = asyncio.create_task(one.run("helper", "Hello", "s-2"))
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        run_id = next(iter(one.runs.logs.newest())).run_id
        assert (await cli("cancel", run_id, *at))["status"] == "cancelled"
        with pytest.raises(Interrupted):
            await plain
        with pytest.raises(RunNotFound):
            await cli("show", "run_nope", *at)
        acts = AuditLog(folder / "data").read(None, AuditFilter("", "", "", 10))
        mine = [
            (a["action"], a["object"], a["outcome"], a["detail"])
            for a in acts
            if a["principal"] == shell_user()
        ]
        assert remote or mine == [
            ("run.cancel", run_id, "done", ""),
            ("run.decide", row.run_id, "done", "approve"),
            ("run.decide", row.run_id, "refused", "approve"),
        ]
        if not remote:
            with pytest.raises(NotWaiting):
                await cli("resume", row.run_id, "deny", *at)


@pytest.mark.parametrize(
    "args",
    [
        ("maybe",),
        ("deny", "--arguments", "{}"),
        ("answer",),
        ("approve", "--arguments", "[1]"),
        ("approve", "--arguments", "{"),
    ],
)
async def test_decisions_that_are_none_are_refused(tmp_path, args):
    with pytest.raises(InvalidInput):
        await cli("resume", "run_1", *args, *empty(tmp_path))
