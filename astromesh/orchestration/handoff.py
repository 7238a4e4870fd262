"""Hand-offs: how an agent of a swarm passes the conversation on, by tool call or, without tools, in words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from astromesh.abc.tool import ToolContext
from astromesh.errors import InvalidToolCall
from astromesh.graph.extract import whole_object
from astromesh.node.tool_results import failed, parse_arguments, unknown_tool
from astromesh.types import ToolCall, ToolResult, ToolSpec

_KEY = "handoff"
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
#: what providers take as the name of a function
_LONGEST_NAME = 64


class Handoff(NamedTuple):
    """Who goes on, and what it should know."""

    agent: str
    message: str = ""


class HandoffTools:
    """A `ToolPort` with one tool for each agent that may go on. The first call ends the run.

    Args:
        agents: description by name.

    `chosen` is the hand-off that was made, or None.
    """

    def __init__(self, agents: Mapping[str, str]) -> None:
        self.chosen: Handoff | None = None
        self._agents = {_tool_name(agent): agent for agent in agents}
        self._specs = tuple(_spec(tool, agent, agents[agent]) for tool, agent in self._agents.items())

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        agent = self._agents.get(call.name)
        if agent is None:
            return failed(call, InvalidToolCall(unknown_tool(call.name, tuple(self._agents))))
        try:
            message = parse_arguments(call).get("message")
        except InvalidToolCall:
            message = ""  # to whom is what counts
        self.chosen = self.chosen or Handoff(agent, message if isinstance(message, str) else "")
        return ToolResult(call.id, call.name, f"{self.chosen.agent} goes on.", ends_run=True)


def said_handoff(text: str, agents: Mapping[str, str]) -> Handoff | None:
    """The hand-off that a whole text is, `{"handoff": "AGENT", "message": "…"}`, or None.

    Args:
        text: an agent's answer.
        agents: those who may go on; a name that is nearly right is taken as meant.
    """
    found = written(text)
    if found is None:
        return None
    folded = {name.casefold(): name for name in agents}
    near = difflib.get_close_matches(str(found[_KEY]).casefold(), folded, 1, 0.8)
    return Handoff(folded[near[0]], message_of(found)) if near else None


def written(text: str) -> dict[str, Any] | None:
    """The object of a text that is a hand-off in words, whoever it names; None of any other text."""
    found = whole_object(text)
    return found if isinstance(found, dict) and _KEY in found else None


def message_of(found: Mapping[str, Any]) -> str:
    message = found.get("message")
    return message if isinstance(message, str) else ""


def instructions(agents: Mapping[str, str]) -> str:
    """What an agent is told about the others; empty where there are none."""
    if not agents:
        return ""
    listed = "\n".join(f"- {name}: {about}" for name, about in agents.items())
    return (
        "## Other agents\nIf another agent is better suited to the user's request, hand the conversation "
        f"over with its tool and say nothing else; otherwise answer yourself.\n{listed}\n"
        "If you cannot call tools, hand over by answering with nothing but "
        '{"handoff": "NAME", "message": "WHAT IT SHOULD KNOW"}.'
    )


def _tool_name(agent: str) -> str:
    return _NO_NAME.sub("_", f"handoff_to_{agent}")[:_LONGEST_NAME]


def _spec(tool: str, agent: str, description: str) -> ToolSpec:
    message = {"type": "string", "description": "What the agent should know beside the conversation."}
    schema = {"type": "object", "properties": {"message": message}}
    about = f"Hands the conversation over to {agent}. {description}".strip()
    return ToolSpec(tool, about, schema, recorded=False)
