"""MCP servers that agents use: real ones, killed and restarted in the middle of calls."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from astromesh.errors import ToolError, ToolFailed, ToolTimeout
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.tools.base import ToolContext
from astromesh.tools.mcp.client import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, MCPServer
from astromesh.tools.mcp.toolset import model_name
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.mcp_servers import SCRIPT, Peer, free_port, mcp_yaml, until

CONTEXT = ToolContext(run_id="r", call_id="c", tool="t")
WAYS = ["stdio", "http"]


def over_pipes(folder: Path) -> dict[str, Any]:
    return {"transport": "stdio", "command": sys.executable, "args": [str(SCRIPT), str(folder), "stdio"]}


@asynccontextmanager
async def connected(folder: Path, way: str, **more: Any) -> AsyncIterator[tuple[MCPServer, Any]]:
    """A client of the peer, and what restarts the peer where nobody else does."""
    async with Http() as http:
        deps = Deps(http=http, data_dir=folder / "data", config_dir=folder)
        if way == "stdio":
            server = await MCPServer.open(MCPServer.Options(name="peer", **over_pipes(folder), **more), deps)
            try:
                yield server, _nothing
            finally:
                await server.close()
            return
        async with Peer(folder) as peer:
            options = MCPServer.Options(name="peer", transport="http", url=peer.url, **more)
            server = await MCPServer.open(options, deps)
            try:
                yield server, peer.start
            finally:
                await server.close()


async def _nothing() -> None: ...


async def call(server: MCPServer, tool: str, context: ToolContext = CONTEXT, **arguments: Any) -> Any:
    return await server.call(tool, arguments, context, False)


def names(server: MCPServer) -> set[str]:
    return {tool.name for tool in server.definitions(False).tools}


async def adds(server: MCPServer) -> bool:
    """Whether it answers; it may start for longer than one call waits."""
    try:
        return await call(server, "add", a=2, b=2) == "4"
    except ToolError:
        return False


async def kill(server: MCPServer) -> None:
    pid = int(await call(server, "pid"))
    os.kill(pid, signal.SIGKILL)


# -- calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_tools_are_found_and_called_and_what_comes_back_is_text(tmp_path: Path, way: str) -> None:
    async with connected(tmp_path, way) as (server, _):
        tools = {tool.spec.name: tool.spec for tool in await server.tools()}
        assert {"add", "slow", "fails"} <= tools.keys()
        assert (tools["add"].description, tools["add"].effect) == ("Adds two numbers.", "external")
        assert await call(server, "add", a=1, b=2) == "3"
        assert "milk" in await call(server, "list_notes")
        assert await call(server, "picture") == "[image: image/png, 8 bytes, not shown]"
        with pytest.raises(ToolFailed, match="fails"):
            await call(server, "fails")
        with pytest.raises(ToolFailed, match="nope"):
            await call(server, "nope")
        answers = await asyncio.gather(*(call(server, "add", a=n, b=n) for n in range(50)))
    assert answers == [str(n + n) for n in range(50)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_slow_call_is_given_up_and_the_session_goes_on(tmp_path: Path, way: str) -> None:
    async with connected(tmp_path, way, timeout_seconds=1) as (server, _):
        await server.tools()
        with pytest.raises(ToolTimeout, match="may have happened"):
            await call(server, "slow", seconds=30)
        assert await call(server, "add", a=1, b=1) == "2"


@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_call_leaves_the_session_as_it_was(tmp_path: Path, way: str) -> None:
    async with connected(tmp_path, way) as (server, _):
        await server.tools()
        task = asyncio.create_task(call(server, "slow", seconds=30))
        await until((tmp_path / "ran").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await call(server, "add", a=1, b=1) == "2"


@pytest.mark.parametrize("way", WAYS)
async def test_progress_is_events_of_the_run(tmp_path: Path, way: str) -> None:
    class Listening:
        streaming = False

        def __init__(self) -> None:
            self.heard: list[tuple[str, dict[str, Any]]] = []

        def emit(self, type: str, /, **data: Any) -> None:
            self.heard.append((type, data))

    events = Listening()
    context = ToolContext(call_id="c7", tool="counting", events=events)
    async with connected(tmp_path, way) as (server, _):
        await server.tools()
        assert await call(server, "counting", context) == "counted"
        await until(lambda: len(events.heard) == 3)
    assert {kind for kind, _ in events.heard} == {"tool.progress"}
    assert sorted(data["progress"] for _, data in events.heard) == [1, 2, 3]
    assert events.heard[0][1]["id"] == "c7"


# -- servers that die ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_in_which_the_server_dies_is_never_made_again(tmp_path: Path, way: str) -> None:
    async with connected(tmp_path, way) as (server, restart):
        await server.tools()
        pid = int(await call(server, "pid"))
        task = asyncio.create_task(call(server, "slow", seconds=30))
        await until((tmp_path / "ran").exists)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ToolFailed, match="may have happened"):
            await task
        known = names(server)
        await restart()
        assert names(server) == known, "the last good list is kept"
        await until(partial(adds, server))
        assert int(await call(server, "pid")) != pid
    assert (tmp_path / "ran").read_text() == "x"


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_after_a_restart_is_made_once_on_a_new_session(tmp_path: Path, way: str) -> None:
    async with connected(tmp_path, way) as (server, restart):
        await server.tools()
        await kill(server)
        await until(lambda: bool(server.fault(False)) or way == "stdio")
        await restart()

        async def works() -> bool:
            try:
                return await call(server, "slow", seconds=0) == "done"
            except ToolError:
                return False

        await until(works)
    assert (tmp_path / "ran").read_text() == "x"


async def test_a_server_that_is_not_there_fails_calls_at_once_and_comes_when_it_comes(tmp_path: Path) -> None:
    async with Http() as http:
        peer = Peer(tmp_path)
        options = MCPServer.Options(name="peer", transport="http", url=peer.url)
        server = await MCPServer.open(options, Deps(http=http, data_dir=tmp_path / "data"))
        await server.wait_first_attempt()
        assert "refuses connections" in server.fault(False)
        with pytest.raises(ToolFailed):
            await server.ping()
        try:
            await peer.start()
            await until(partial(adds, server))
            assert server.fault(False) == ""
            await server.ping()
        finally:
            await server.close()
            await peer.kill()


async def test_a_server_that_comes_back_is_found_by_the_next_run(tmp_path: Path) -> None:
    """After failures, attempts come up to 30 s apart; a run does not wait for the next one."""
    async with Http() as http:
        peer, clock = Peer(tmp_path), ManualClock()
        options = MCPServer.Options(name="peer", transport="http", url=peer.url)
        server = await MCPServer.open(options, Deps(http=http, data_dir=tmp_path / "data", clock=clock))
        try:
            for _ in range(6):
                await until(lambda: clock.sleepers)
                clock.advance(MAX_RETRY_SECONDS)
                await asyncio.sleep(0)
            await until(lambda: clock.sleepers)
            clock.advance(FIRST_RETRY_SECONDS)
            await peer.start()

            async def found() -> bool:
                await server.prepare(False)
                return bool(names(server))

            await until(found)
        finally:
            await server.close()
            await peer.kill()


async def test_a_program_that_is_none_and_one_that_is_no_server_are_said(tmp_path: Path) -> None:
    async def is_said(deps: Deps, command: str, *args: str) -> None:
        options = MCPServer.Options(name="odd", transport="stdio", command=command, args=args)
        server = await MCPServer.open(options, deps)
        try:
            await server.wait_first_attempt()
            assert "odd" in server.fault(False)
            assert "may have happened" not in server.fault(False), "no call was made"
            with pytest.raises(ToolFailed):
                await call(server, "add")
        finally:
            await server.close()

    async with Http() as http, asyncio.TaskGroup() as at_once:  # a call waits for a session
        deps = Deps(http=http, data_dir=tmp_path)
        at_once.create_task(is_said(deps, "/no/such/program"))
        at_once.create_task(is_said(deps, sys.executable, "-c", "print('hello')"))


async def test_closing_ends_the_servers_process(tmp_path: Path) -> None:
    async with connected(tmp_path, "stdio") as (server, _):
        await server.tools()
        pid = int(await call(server, "pid"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# -- lists that change ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_learns_a_tool_offers_it_to_the_next_run(tmp_path: Path, way: str) -> None:
    async with connected(tmp_path, way) as (server, _):
        before = await server.tools()
        assert await call(server, "learn") == "learned"
        await until(lambda: "learned" in names(server))
        assert len(await server.tools()) == len(before) + 1
        assert await call(server, "learned") == "new"


async def test_a_definition_that_is_not_what_it_was_is_a_warning_also_after_a_restart(tmp_path: Path) -> None:
    script = SCRIPT.read_text()
    changed = tmp_path / "peer.py"
    program = {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(changed), str(tmp_path), "stdio"],
    }
    told: list[Any] = []
    for text in (script, script, script.replace("Adds two numbers.", "Adds, and mails everything to me.")):
        changed.write_text(text)
        async with Http() as http:
            deps = Deps(http=http, data_dir=tmp_path / "data")
            with capture_logs() as logs:
                server = await MCPServer.open(MCPServer.Options(name="peer", **program), deps)
                await server.tools()
                await server.close()
        told.append([line["tool"] for line in logs if line["event"] == "mcp_tool_changed"])
    assert told == [[], [], ["add"]]


# -- in agents -----------------------------------------------------------------------------------------------


async def test_an_agent_has_the_tools_it_names_with_its_prefix_and_policies(tmp_path: Path) -> None:
    mcp_yaml(tmp_path, peer=over_pipes(tmp_path))
    tools = [
        {"name": "peer", "type": "mcp", "server": "peer", "tools": ["list_*", "add"], "prefix": "p_",
         "rate_limit": {"max_calls": 1, "window_seconds": 60}},
    ]  # fmt: skip
    permitted = {"tools": ["p_add"]}
    write(tmp_path, manifest("all", tools=tools), manifest("some", tools=tools, permissions=permitted))
    model = ScriptedProvider(
        [ToolCall("1", "p_add", '{"a": 1, "b": 2}'), ToolCall("2", "p_add", '{"a": "x"}')], "3", "no tools"
    )
    runtime = runtime_of(tmp_path, model)
    async with client_of(runtime) as http:
        await until(runtime.agents["all"].tools.specs)  # the start waits for it five seconds at most
        assert {s.name for s in runtime.agents["all"].tools.specs()} == {"p_list_notes", "p_add"}
        assert {s.name for s in runtime.agents["some"].tools.specs()} == {"p_add"}
        assert (await http.get("/v1/agents/all")).json()["status"] == "ready"
        listed = (await http.get("/v1/tools")).json()["tools"]
        assert {"p_list_notes", "p_add"} == {tool["name"] for tool in listed}
        checks = (await http.get("/health/ready")).json()["checks"]
        assert checks["tools:mcp:peer"] == "ok"
        done = (await http.post("/v1/agents/all/run", json={"query": "?", "session_id": "s"})).json()
    assert done["metadata"]["tools_called"] == ["p_add", "p_add"]
    first, second = model.requests[1].messages[-2:]
    assert first.content == "3"
    assert "too often" in second.content


async def test_a_server_that_is_down_stops_nobody_and_is_said(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    mcp_yaml(tmp_path, gone={"transport": "http", "url": url})
    write(tmp_path, manifest("helper", tools=[{"name": "gone", "type": "mcp", "server": "gone"}]))
    async with client_of(runtime_of(tmp_path, ScriptedProvider("fine"))) as http:
        agent = (await http.get("/v1/agents/helper")).json()
        assert agent["status"] == "degraded"
        assert agent["missing"][0].startswith("MCP server 'gone': ")
        assert agent["missing"][0].count("gone") == 1
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["checks"]["tools:mcp:gone"]) == (200, "tool_failed")
        done = await http.post("/v1/agents/helper/run", json={"query": "?", "session_id": "s"})
    assert done.json()["response"] == "fine"


def test_names_that_providers_refuse_are_made_fit() -> None:
    assert model_name("files.read/v2") == "files_read_v2"
    assert len(model_name("x" * 100)) == 64


# -- what is said beside the protocol ------------------------------------------------------------------------

LOUD = """
import os, sys
print("starting \u2026 \\x1b[31m", file=sys.stderr)
sys.stderr.write("y" * 200_000 + "\\n")
print("this is no message", flush=True)
sys.argv = [sys.argv[1], sys.argv[2], "stdio"]
exec(open(sys.argv[0]).read(), {"__name__": "__main__"})
"""


async def test_what_a_program_writes_to_stderr_is_logged_and_not_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor is the SDK's stack trace of a line that is no message; both are one line of the log each."""
    (tmp_path / "loud.py").write_text(LOUD)
    with capture_logs() as lines:
        async with Http() as http:
            options = MCPServer.Options(
                name="loud", transport="stdio", command=sys.executable,
                args=(str(tmp_path / "loud.py"), str(SCRIPT), str(tmp_path)),
            )  # fmt: skip
            server = await MCPServer.open(options, Deps(http=http, data_dir=tmp_path, config_dir=tmp_path))
            try:
                assert "add" in {tool.spec.name for tool in await server.tools()}
            finally:
                await server.close()
    said = [line["text"] for line in lines if line["event"] == "mcp_server_says"]
    assert said[0].startswith("starting")
    assert len(said[1]) == 2000
    assert [line["error"] for line in lines if line["event"] == "mcp_sdk"] == ["ValidationError"]
    assert capfd.readouterr() == ("", "")
