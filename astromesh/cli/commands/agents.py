"""`astromesh run`, `graph` and `tools`: a question to an agent, a diagram of it, the tools it may call."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from textwrap import shorten
from typing import Annotated, NamedTuple
from uuid import uuid4

import typer
from pydantic import BaseModel, ConfigDict

from astromesh.cli.errors import RUN_FAILED, USAGE_ERROR, reported_errors
from astromesh.cli.event_loop import EventLoop
from astromesh.cli.options import (
    CONFIG_FOLDER,
    DATA_FOLDER,
    AgentName,
    Config,
    Data,
    Json,
    Session,
    folders_of,
)
from astromesh.cli.terminal import JsonEvents, Printer, note, plain, print_fallback, print_json, print_table
from astromesh.errors import AgentNotFoundError, InvalidInput
from astromesh.logs import configure_logging
from astromesh.plugins import Deps, Plugins
from astromesh.runtime.agent import Agent, agent_diagram
from astromesh.runtime.agent_directory import call_tool, describe_tools
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.telemetry.events import EventSink
from astromesh.text import did_you_mean, is_blank
from astromesh.types import JsonObject, ToolResult


def find_agent(runtime: AgentRuntime, name: str) -> Agent:
    """Returns the agent. Raises: AgentNotFoundError, which names the agents; AgentUnavailable."""
    try:
        return runtime.agent(name)
    except AgentNotFoundError:
        others = f"Known: {', '.join(sorted(runtime.agents))}." if runtime.agents else "There are no agents."
        raise AgentNotFoundError(name, did_you_mean(name, runtime.agents) or others) from None


def checked_query(query: str) -> str:
    """Returns a query from a terminal or a pipe.

    Raises:
        InvalidInput: it is blank, or it is not UTF-8.
    """
    if is_blank(query):
        raise InvalidInput("The query is empty.")
    if any("\ud800" <= char <= "\udfff" for char in query):  # Python decodes other bytes so
        raise InvalidInput("The query is not UTF-8.")
    return query


# -- graph and run -----------------------------------------------------------------------------------------


def graph(
    agent: AgentName,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Draw what an agent does as a Mermaid diagram. MCP servers are drawn, and not started."""
    folders = folders_of(config, data)
    configure_logging("warning")
    diagram = asyncio.run(_diagram(folders, agent))
    if json:
        print_json({"agent": agent, "mermaid": diagram})
    else:
        print(diagram)


async def _diagram(folders: tuple[Path, Path], name: str) -> str:
    plugins = Plugins({"tool_sources": {"mcp": _DrawnServer}})
    async with AgentRuntime(folders[0], data_dir=folders[1], plugins=plugins) as runtime:
        return agent_diagram(find_agent(runtime, name))


class _NoTools(NamedTuple):
    tools: tuple[()] = ()


class _DrawnServer:
    """An MCP server that is neither started nor connected."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="ignore")

        transport: str
        forward_identity: bool = False

    def __init__(self, options: Options) -> None:
        self.forwards_identity, self.over_http = options.forward_identity, options.transport != "stdio"

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> _DrawnServer:
        return cls(options)

    def definitions(self, forwards: bool) -> _NoTools:
        return _NoTools()

    def for_callers_only(self, forwards: bool) -> bool:
        return False

    async def wait_first_attempt(self) -> None: ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


def run(
    agent: AgentName,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The message; '-' reads it from stdin.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    session: Session = "",
    json: Json = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the answer as it comes; with --json: events.")
    ] = False,
) -> None:
    """Ask an agent one question, without a server. Without --session, no turn is stored."""
    folders = folders_of(config, data)
    configure_logging("warning")
    query = sys.stdin.read() if query == "-" else query
    printer = JsonEvents() if json else Printer()
    sinks = (printer,) if stream else ()
    with reported_errors(as_json=json), asyncio.Runner(loop_factory=EventLoop) as runner:
        answer = runner.run(_run(folders, agent, query, session, sinks))
    if stream:
        printer.finish(answer.response)
    elif json:
        print_json(answer.to_json())
    else:
        print(plain(answer.response))
    if not json:
        print_fallback(answer.metadata)


async def _run(
    folders: tuple[Path, Path], agent: str, query: str, session: str, sinks: tuple[EventSink, ...]
) -> RunAnswer:
    query = checked_query(query)
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        request = RunRequest(query, session or f"cli-{uuid4().hex}", persist=bool(session))
        return await runtime.runner.start(find_agent(runtime, agent), request, sinks=sinks)


# -- tools ---------------------------------------------------------------------------------------------------

#: errors of the call, not of the tool
_USAGE_ERRORS = frozenset({"invalid_tool_call", "tool_not_permitted"})
#: characters of a description in the table; `--json` prints all of it
_MAX_DESCRIPTION = 100


#: the commands of `astromesh tools`
app = typer.Typer()


@app.command("list")
def list_tools(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER, json: Json = False) -> None:
    """List the tools that agents may call."""
    folders = folders_of(config, data)
    configure_logging("warning")
    tools = asyncio.run(_tools(folders))
    if json:
        print_json(tools)
    elif tools:
        print_table(("NAME", "EFFECT", "AGENTS", "DESCRIPTION"), map(_tool_row, tools))
    else:
        note("No agent has a tool.")


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="NAME", help="The name that 'tools list' shows.")],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="The arguments, an object; '-' reads it from stdin.")
    ] = "{}",
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    agent: Annotated[
        str, typer.Option("--agent", "-a", metavar="NAME", help="Owner of the tool, if several have it.")
    ] = "",
    json: Json = False,
) -> None:
    """Call a tool as an agent would.

    The permissions, limits and checks of the agent hold.
    """
    folders = folders_of(config, data)
    configure_logging("warning")
    arguments = sys.stdin.read() if arguments == "-" else arguments
    with reported_errors(as_json=json):
        result = asyncio.run(_call(folders, tool, arguments, agent))
    if json:
        print_json(_result_json(result))
    elif result.ok:
        print(plain(result.content))
    else:
        note(f"error: {result.content}", "red")
    if not result.ok:
        raise typer.Exit(USAGE_ERROR if result.error in _USAGE_ERRORS else RUN_FAILED)


def _result_json(result: ToolResult) -> JsonObject:
    error = None if result.ok else result.error
    return {
        "tool": result.name, "ok": result.ok, "content": result.content, "error": error,
        "duration_ms": result.duration_ms,
    }  # fmt: skip


def _tool_row(tool: JsonObject) -> tuple[str, str, str, str]:
    description = tool["function"]["description"].partition("\n")[0]
    summary = shorten(description, _MAX_DESCRIPTION, placeholder=" …")
    return tool["name"], tool["effect"], ", ".join(tool["agents"]), summary


async def _tools(folders: tuple[Path, Path]) -> list[JsonObject]:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        return describe_tools(runtime.agents.values())


async def _call(folders: tuple[Path, Path], tool: str, arguments: str, agent: str) -> ToolResult:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        owner = find_agent(runtime, agent) if agent else runtime.directory.with_tool(tool)
        return await call_tool(owner, tool, arguments, runtime.clock)
