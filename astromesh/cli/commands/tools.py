"""`astromesh tools`: list the tools of the agents, call one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from astromesh.cli.errors import RUN_FAILED, USAGE_ERROR, reported_errors
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.terminal import note, plain, print_json, print_table
from astromesh.logs import configure_logging
from astromesh.runtime.agent_directory import call_tool, describe_tools
from astromesh.runtime.engine import AgentRuntime
from astromesh.types import JsonObject, ToolResult

#: errors of the call, not of the tool
_USAGE_ERRORS = frozenset({"invalid_tool_call", "tool_not_permitted"})
#: characters of a description in the table; `--json` prints all of it
_MAX_DESCRIPTION = 100


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
        print_table(("NAME", "EFFECT", "AGENTS", "DESCRIPTION"), map(_row, tools))
    else:
        note("No agent has a tool.")


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="NAME", help="The name that 'tools list' shows.")],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="The arguments, an object; '-' reads it from stdin.")
    ] = "{}",
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    agent: Annotated[
        str, typer.Option("--agent", "-a", metavar="NAME", help="Owner of the tool, if several have it.")
    ] = "",
    json: Json = False,
) -> None:
    """Call a tool as an agent would, with its permissions, limits and checks."""
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


def _row(tool: JsonObject) -> tuple[str, str, str, str]:
    description = tool["function"]["description"].partition("\n")[0]
    shown = shorten(description, _MAX_DESCRIPTION, placeholder=" …")
    return tool["name"], tool["effect"], ", ".join(tool["agents"]), shown


async def _tools(folders: tuple[Path, Path]) -> list[JsonObject]:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        return describe_tools(runtime.agents.values())


async def _call(folders: tuple[Path, Path], tool: str, arguments: str, agent: str) -> ToolResult:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        owner = runtime.agent(agent) if agent else runtime.directory.with_tool(tool)
        return await call_tool(owner, tool, arguments, runtime.clock)
