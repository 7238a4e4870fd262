"""Agents by the names under which Python imports them: `astromesh serve module:agent`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from astromesh.agents.agent import Agent
from astromesh.errors import ConfigError
from astromesh.text import did_you_mean


def load_agents(references: Iterable[str]) -> list[Agent]:
    """Imports agents; modules are also searched in the working directory.

    Args:
        references: `module:name` of agents, or of lists of agents.

    Raises:
        ConfigError: The module or the name does not exist, or is not an agent.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return [agent for reference in references for agent in _load(reference)]


def _load(reference: str) -> list[Agent]:
    module_name, colon, name = reference.partition(":")
    if not colon or not name:
        raise ConfigError(f"{reference!r} does not name an agent. Write MODULE:NAME, e.g. app:agent.")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports one that does not
        raise ConfigError(
            f"There is no module {error.name!r}. Start the command in the folder of {error.name}.py, or "
            "install the package that contains it."
        ) from error
    found = getattr(module, name, None)
    agents = found if isinstance(found, list | tuple) else [found]
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        known = [key for key, value in vars(module).items() if isinstance(value, Agent)]
        hint = did_you_mean(name, known) or (f"Its agents: {', '.join(known)}." if known else "")
        raise ConfigError(f"{reference!r} is not an agent. {hint}".strip())
    return list(agents)
