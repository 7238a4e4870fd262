"""Manifests as they were when a run was accepted, so that it ends under the one it began with (R16)."""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from astromesh.config.agent import AgentManifest
from astromesh.config.load import load
from astromesh.core.prompt_engine import check_template
from astromesh.errors import InvalidManifest
from astromesh.plugins import Plugins
from astromesh.runtime.agent import Agent

#: a literal key; a name of the environment is none
_KEY = re.compile(r"""(\bapi_key["']?\s*:\s*)(?!["']?\$\{)("[^"]*"|'[^']*'|[^\s,}#]+)""")


def source_of(manifest: AgentManifest) -> str:
    """A manifest as it was written, variables unresolved, literal keys struck out."""
    try:
        text = manifest.file.read_text("utf-8-sig")
    except OSError:  # it was there a moment ago: runs of this agent cannot be taken up under another one
        return ""
    return _KEY.sub(r'\1"***"', text)


def load_snapshot(
    folder: Path, name: str, source: str, env: Mapping[str, str] | None, plugins: Plugins
) -> AgentManifest:
    """The manifest of a text, with the folder's other files as they are now.

    Raises:
        InvalidManifest: it does not fit them.
    """
    with TemporaryDirectory() as place:
        file = Path(place) / f"{name}.agent.yaml"
        file.write_text(_with_keys(source, folder, name), "utf-8")
        found = load(
            folder,
            env=os.environ if env is None else env,
            resolver=plugins,
            check_template=check_template,
            instead={name: file},
        )
        if faults := found.broken.get(name):
            raise InvalidManifest(f"The run's own manifest of {name!r} does not work any more: {faults[0]}")
        return found.agents[name]


def _with_keys(source: str, folder: Path, name: str) -> str:
    """A text with the literal keys that the agent's present file has, in their order."""
    file = folder / "agents" / f"{name}.agent.yaml"
    keys = [found[1] for found in _KEY.findall(file.read_text("utf-8-sig"))] if file.exists() else []
    if not keys or len(keys) != len(_KEY.findall(source)):
        return source
    return _KEY.sub(lambda found: found[1] + keys.pop(0), source)


class Snapshots:
    """Agents of manifests that are no longer the present ones; the newest few."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._agents: OrderedDict[tuple[str, str], Agent] = OrderedDict()
        self._opening = asyncio.Lock()

    async def get(self, name: str, source: str, make: Callable[[str, str], Awaitable[Agent]]) -> Agent:
        async with self._opening:
            agent = self._agents.get((name, source))
            if agent is None:
                agent = self._agents[name, source] = await make(name, source)
                while len(self._agents) > self._most:
                    self._agents.popitem(last=False)
        return agent
