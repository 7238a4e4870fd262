"""What is loaded, as lines for lists: one source for the API and the command."""

from __future__ import annotations

from collections.abc import Iterable

from astromesh.runtime.agent import Agent
from astromesh.types import JsonObject


def tools_of(agents: Iterable[Agent]) -> list[JsonObject]:
    """Every tool that some agent may use, in function-calling form, with the agents that may."""
    found: dict[str, JsonObject] = {}
    for agent in agents:
        for spec in agent.tools.specs():
            function = spec.to_function()
            line = found.setdefault(
                f"{spec.name}:{function}",
                {"name": spec.name, "effect": spec.effect, **function, "agents": []},
            )
            line["agents"].append(agent.name)
    return sorted(found.values(), key=lambda tool: (str(tool["name"]), tool["agents"]))
