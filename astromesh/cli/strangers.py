"""Agents that a key is made for and that the configuration does not have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astromesh.cli.output import note
from astromesh.config.keys import did_you_mean
from astromesh.config.load import load


def tell(config: Path, agents: Sequence[str]) -> None:
    """Warns: they may come later, and may be slips of the pen. Without a configuration nobody knows."""
    if not config.is_dir():
        return
    found = load(config)
    there = {*found.agents, *found.broken}
    for name in agents:
        if name not in there:
            hint = did_you_mean(name, there)
            note(f"warning: there is no agent {name!r} in {config}{f' ({hint})' if hint else ''}", "yellow")
