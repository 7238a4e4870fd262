"""An MCP server on the SDK's own MCPServer: `mcp_peer.py FOLDER stdio`, or `FOLDER PORT [legacy]` for HTTP.

What happened stands in FOLDER, so that a test sees it after the process was killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.utilities.types import Image

FOLDER = Path(sys.argv[1])
server = MCPServer("peer", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def list_notes() -> dict[str, Any]:
    """Lists notes."""
    return {"notes": ["milk"]}


@server.tool()
def pid() -> str:
    """The process."""
    return str(os.getpid())


@server.tool()
async def slow(seconds: float) -> str:
    """Notes that it was called, then takes its time."""
    with (FOLDER / "ran").open("a") as file:
        file.write("x")
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
async def counting(ctx: Context) -> str:
    """Reports its progress."""
    for step in range(3):
        await ctx.report_progress(step + 1, 3, f"step {step + 1}")
    return "counted"


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG....", format="png")


@server.tool()
def fails() -> str:
    """Fails."""
    raise ValueError("the shelf is empty")


@server.tool()
async def learn(ctx: Context) -> str:
    """Gets one more tool, and says so."""

    def learned() -> str:
        """Was not there before."""
        return "new"

    server.add_tool(learned)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "learned"


def main() -> None:
    if sys.argv[2] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))


if __name__ == "__main__":
    main()
