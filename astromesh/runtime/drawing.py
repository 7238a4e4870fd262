"""An agent as a Mermaid diagram, for the command and the route."""

from __future__ import annotations

from astromesh.abc.run import Drawable
from astromesh.errors import InvalidInput
from astromesh.runtime.agent import Agent


def mermaid_of(agent: Agent) -> str:
    """What an agent does.

    Raises:
        InvalidInput: its pattern is no graph.
    """
    if not isinstance(agent.pattern, Drawable):
        raise InvalidInput(
            f"The pattern {agent.pattern_name!r} of {agent.name!r} is no graph and cannot be drawn."
        )
    return agent.pattern.to_mermaid(agent.max_iterations)
