"""`astromesh tools list`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astromesh.cli.output import note, print_json, print_table
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.listing import tools_of
from astromesh.telemetry.logs import configure_logging
from astromesh.types import JsonObject


def list_tools(places: tuple[Path, Path], *, as_json: bool) -> None:
    """Prints every tool that some agent may use."""
    configure_logging("warning")
    tools = asyncio.run(_tools(places))
    if as_json:
        print_json(tools)
    elif tools:
        print_table(("NAME", "EFFECT", "AGENTS", "DESCRIPTION"), map(_row, tools))
    else:
        note("No agent has a tool.")


def _row(tool: JsonObject) -> tuple[str, str, str, str]:
    description = tool["function"]["description"].partition("\n")[0]
    return tool["name"], tool["effect"], ", ".join(tool["agents"]), description


async def _tools(places: tuple[Path, Path]) -> list[JsonObject]:
    async with AgentRuntime(places[0], data_dir=places[1]) as runtime:
        return tools_of(runtime.agents.values())
