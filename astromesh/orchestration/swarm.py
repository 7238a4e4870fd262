"""swarm: agents hand a conversation to each other, without a coordinator (document 001, step 7).

Every agent is a node. It runs as a nested run on the conversation of the swarm's session, with its own
prompt, model, tools and guardrails. Its text streams as the swarm's own. Within one run no agent receives the
conversation twice. Agents hand over by a tool call or, without tools, by writing JSON.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import Field

from astromesh.errors import InvalidToolCall
from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import whole_object
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.base import PatternTask
from astromesh.orchestration.patterns import NOTES, UNFINISHED, GraphPattern, PatternOptions, agents_of
from astromesh.plugins import Deps
from astromesh.tools.base import NestedRunOptions, RunAgent, ToolContext
from astromesh.tools.json_schema import parse_arguments
from astromesh.tools.results import failed_result, unknown_tool
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec

# -- hand-offs ---------------------------------------------------------------------------------------------

_HANDOFF_KEY = "handoff"
_INVALID_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
#: The longest name of a function that providers accept.
_MAX_NAME_LENGTH = 64


class Handoff(NamedTuple):
    """The agent that takes over, and what it should know."""

    agent: str
    message: str = ""


class HandoffTools:
    """A `ToolPort` with one tool for each agent that may take over. The first call ends the run.

    Args:
        agents: The descriptions by name.

    Attributes:
        chosen: The hand-off of the run, or None.
    """

    def __init__(self, agents: Mapping[str, str]) -> None:
        self.chosen: Handoff | None = None
        self._agents = {_handoff_tool_name(agent): agent for agent in agents}
        self._specs = tuple(_handoff_spec(tool, agent, agents[agent]) for tool, agent in self._agents.items())

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        agent = self._agents.get(call.name)
        if agent is None:
            return failed_result(call, InvalidToolCall(unknown_tool(call.name, tuple(self._agents))))
        try:
            message = parse_arguments(call).get("message")
        except InvalidToolCall:
            message = ""  # the tool already names the agent
        self.chosen = self.chosen or Handoff(agent, message if isinstance(message, str) else "")
        return ToolResult(call.id, call.name, f"{self.chosen.agent} takes over.", ends_run=True)


def parse_handoff(text: str, agents: Mapping[str, str]) -> Handoff | None:
    """Returns the hand-off if the whole text is one, `{"handoff": "AGENT", "message": "…"}`, or None.

    Args:
        text: The answer of an agent.
        agents: The agents that may take over. The closest name replaces a misspelled one.
    """
    found = handoff_object(text)
    if found is None:
        return None
    folded = {name.casefold(): name for name in agents}
    near = difflib.get_close_matches(str(found[_HANDOFF_KEY]).casefold(), folded, 1, 0.8)
    message = found.get("message")
    return Handoff(folded[near[0]], message if isinstance(message, str) else "") if near else None


def handoff_object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object of a text that is a hand-off to any name, or None."""
    found = whole_object(text)
    return found if found is not None and _HANDOFF_KEY in found else None


def handoff_instructions(agents: Mapping[str, str]) -> str:
    """Returns the instructions of an agent about the others, or an empty text if there are none."""
    if not agents:
        return ""
    listed = "\n".join(f"- {name}: {about}" for name, about in agents.items())
    return (
        "## Other agents\nIf another agent is better suited to the user's request, hand the conversation "
        f"over with its tool and say nothing else; otherwise answer yourself.\n{listed}\n"
        "If you cannot call tools, hand over by answering with nothing but "
        '{"handoff": "NAME", "message": "WHAT IT SHOULD KNOW"}.'
    )


def _handoff_tool_name(agent: str) -> str:
    return _INVALID_IN_NAME.sub("_", f"handoff_to_{agent}")[:_MAX_NAME_LENGTH]


def _handoff_spec(tool: str, agent: str, description: str) -> ToolSpec:
    message = {"type": "string", "description": "What the agent should know beside the conversation."}
    schema = {"type": "object", "properties": {"message": message}}
    about = f"Hands the conversation over to {agent}. {description}".strip()
    return ToolSpec(tool, about, schema, recorded=False)


#: The metadata of the answering agent that the run of the swarm reports as its own.
_REPORTED = ("provider", "model", "attempts")


class Swarm:
    """Agents hand the conversation to each other.

    The first one listed begins a session. A later message begins with the agent that answered last,
    as far as the memory of the swarm tells.
    """

    class Options(PatternOptions):
        agents: tuple[str, ...] = Field(
            min_length=1, description="The agents. The first one begins a session."
        )
        max_handoffs: int = Field(
            3, ge=0, description="The limit of hand-offs of one run. After it the current agent answers."
        )

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Opens the pattern. Raises ConfigError if there is no runtime that runs agents."""
        run_agent, agents = agents_of(deps, options.agents, "swarm")
        return GraphPattern(partial(swarm_graph, agents, options.max_handoffs, run_agent), SwarmNotes)


@dataclass(slots=True)
class SwarmNotes:
    """The agents that had the conversation, in order, what they have used, and the metadata of the last one.

    Args:
        task: The task of the swarm.
    """

    task: PatternTask
    turns: list[str] = field(default_factory=list)
    handoff: Handoff | None = None
    iterations: int = 0
    tools_called: list[str] = field(default_factory=list)
    reported: JsonObject = field(default_factory=dict)

    def metadata(self) -> JsonObject:
        handoffs = [{"from": one, "to": other} for one, other in pairwise(self.turns)]
        last = self.turns[-1] if self.turns else ""
        return {
            **self.reported,
            "answered_by": last,
            "handoffs": handoffs,
            "iterations": self.iterations,
            "tools_called": list(self.tools_called),
        }


def swarm_graph(
    agents: Mapping[str, str], max_handoffs: int, run_agent: RunAgent, max_iterations: int
) -> PromptGraph:
    """Returns a graph with a node for each agent, with routes to all others.

    Args:
        agents: The descriptions by name. The first agent begins.
        max_handoffs: The limit of hand-offs of one run.
        run_agent: Runs an agent.
        max_iterations: The model calls of the tool loop of each agent.
    """
    nodes = [AgentNode(name, agents, max_handoffs, run_agent, max_iterations) for name in agents]
    return PromptGraph("swarm", nodes=nodes).set_entry(next(iter(agents)))


class AgentNode(BaseNode):
    """Runs one agent on the conversation. It returns the answer, or routes to the agent that takes over.

    Args:
        name: The name of the agent.
        agents: The descriptions of all agents of the swarm, by name.
        max_handoffs: The limit of hand-offs of one run.
        run_agent: Runs the agent.
        max_iterations: The model calls of its tool loop.
    """

    def __init__(
        self,
        name: str,
        agents: Mapping[str, str],
        max_handoffs: int,
        run_agent: RunAgent,
        max_iterations: int,
    ) -> None:
        others = [other for other in agents if other != name]
        super().__init__(name, routes=others, flags={NodeFlag.CRITICAL}, routing="edges_only")
        self._agents, self._max_handoffs = agents, max_handoffs
        self._run, self._rounds = run_agent, max_iterations

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        notes: SwarmNotes = config[NOTES]
        if (last := self._last_author(notes)) is not None:
            return NodeResult(self.name, next_node=last, is_answer=False)
        received, notes.handoff = notes.handoff, None
        notes.turns.append(self.name)
        others = self._others(notes)
        notices = (_handoff_notice(notes, received), handoff_instructions(others))
        offer = HandoffTools(others)
        response, details = await self._answer(notes, notices, offer, config)
        notes.handoff = offer.chosen or parse_handoff(response, others)
        if notes.handoff is not None:
            return NodeResult(self.name, next_node=notes.handoff.agent, is_answer=False)
        if _is_handoff(response):  # to itself, to nobody, or to an earlier agent: that is not an answer
            response, details = await self._answer(notes, (notices[0], _ALONE), HandoffTools({}), config)
        if _is_handoff(response):
            return NodeResult(self.name, UNFINISHED, stop_reason="max_iterations")
        reason = details["stop_reason"]
        return NodeResult(self.name, response, stop_reason="" if reason == "completed" else reason)

    def _last_author(self, notes: SwarmNotes) -> str | None:
        """Returns the agent that answered the message before, where the run begins with another one."""
        if notes.turns:
            return None
        authors = (m.name for m in reversed(notes.task.messages) if m.role == "assistant")
        last = next(authors, "")
        return last if last in self._agents and last != self.name else None

    def _others(self, notes: SwarmNotes) -> dict[str, str]:
        if len(notes.turns) > self._max_handoffs:
            return {}
        return {name: about for name, about in self._agents.items() if name not in notes.turns}

    async def _answer(
        self, notes: SwarmNotes, instructions: Sequence[str], handoff_tools: HandoffTools, config: NodeConfig
    ) -> tuple[str, JsonObject]:
        *before, question = notes.task.messages
        prompt = [m.content for m in before if m.role == "system"]
        terms = NestedRunOptions(
            history=tuple(m for m in before if m.role != "system"),
            attachments=question.attachments,
            instructions="\n\n".join(filter(None, (*prompt, *instructions))),
            tools=handoff_tools,
            max_iterations=self._rounds,
            streams_to_caller=True,
            is_withheld=_is_handoff,
        )
        # "o" is the span of the orchestration in traces, the parent of this run
        parent = config.scope.tool_context("o", self.name)
        answer = await self._run(self.name, question.content, notes.task.context, parent, terms)
        _record_run(notes, answer["metadata"], config)
        return answer["response"], answer["metadata"]


_ALONE = (
    "You tried to hand this conversation over, and nobody else can take it now. Answer the user yourself."
)


def _is_handoff(text: str) -> bool:
    return handoff_object(text) is not None


def _handoff_notice(notes: SwarmNotes, handoff: Handoff | None) -> str:
    if handoff is None:
        return ""
    response = f" It says: {handoff.message}" if handoff.message else ""
    return f"The agent {notes.turns[-2]} handed this conversation to you.{response}"


def _record_run(notes: SwarmNotes, details: JsonObject, config: NodeConfig) -> None:
    tools = [tool for tool in details["tools_called"] if not tool.startswith("handoff_to_")]
    notes.tools_called += tools
    config.scope.tools_called.extend(tools)
    notes.iterations += details["iterations"]
    notes.reported = {key: details[key] for key in _REPORTED if key in details}
