"""`astromesh tools list` and `astromesh tools call`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from textwrap import shorten

import typer

from astromesh.cli.errors import CANCELLED, RUN_FAILED, USAGE_ERROR, report
from astromesh.cli.terminal import note, plain, print_json, print_table
from astromesh.errors import AstromeshError
from astromesh.runtime.agent_directory import call_tool, describe_tools
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.logs import configure_logging
from astromesh.types import JsonObject, ToolResult

#: what the call got wrong, not the tool
_USAGE_ERRORS = frozenset({"invalid_tool_call", "tool_not_permitted"})
#: characters of a description in the table; servers write pages, and `--json` has them whole
_MAX_DESCRIPTION = 100


def list_tools(folders: tuple[Path, Path], *, as_json: bool) -> None:
    """Prints every tool that some agent may use."""
    configure_logging("warning")
    tools = asyncio.run(_tools(folders))
    if as_json:
        print_json(tools)
    elif tools:
        print_table(("NAME", "EFFECT", "AGENTS", "DESCRIPTION"), map(_row, tools))
    else:
        note("No agent has a tool.")


def call(folders: tuple[Path, Path], tool: str, arguments: str, agent: str, *, as_json: bool) -> None:
    """Prints what a tool answers, as a model would read it.

    Args:
        arguments: JSON, or `-` for stdin.
        agent: whose tool, with its permissions and limits; empty where one agent alone has it.

    Raises:
        typer.Exit: 2 where the call is wrong, 1 where the tool failed.
    """
    configure_logging("warning")
    arguments = sys.stdin.read() if arguments == "-" else arguments
    try:
        result = asyncio.run(_call(folders, tool, arguments, agent))
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    except KeyboardInterrupt:
        note("cancelled")
        raise typer.Exit(CANCELLED) from None
    if as_json:
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
        whose = runtime.agent(agent) if agent else runtime.directory.with_tool(tool)
        return await call_tool(whose, tool, arguments, runtime.clock)
