"""`astromesh graph`: what an agent does, as a Mermaid diagram."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astromesh.runtime.drawing import mermaid_of
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.logs import configure_logging


def graph(places: tuple[Path, Path], name: str) -> None:
    """Prints the diagram.

    Raises:
        AgentNotFoundError, AgentUnavailable: there is no such agent.
        InvalidInput: its pattern is no graph.
    """
    configure_logging("warning")
    print(asyncio.run(_drawn(places, name)))


async def _drawn(places: tuple[Path, Path], name: str) -> str:
    async with AgentRuntime(places[0], data_dir=places[1]) as runtime:
        return mermaid_of(runtime.agent(name))
