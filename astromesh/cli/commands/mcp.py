"""`astromesh mcp`: the agents as MCP tools over stdio, for editors and desktop programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astromesh.cli.errors import reported_errors
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, folders_of
from astromesh.logs import configure_logging
from astromesh.runtime.engine import AgentRuntime


def mcp(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Serve the agents as MCP tools over stdio, for editors.

    The client starts this command, and closes stdin to end it. Log lines go to stderr.
    """
    folders = folders_of(config, data)
    configure_logging("warning")
    with reported_errors():
        asyncio.run(_serve(folders))


async def _serve(folders: tuple[Path, Path]) -> None:
    from astromesh.api.routes.mcp import serve_stdio  # loads FastAPI

    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        await serve_stdio(runtime)
