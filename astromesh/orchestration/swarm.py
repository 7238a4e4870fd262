"""swarm: agents hand a conversation to each other, without a coordinator (document 001, step 7).

Every agent is a node. It runs as a nested run on the conversation of the swarm's session, with its own
prompt, model, tools and guardrails; what it says is the swarm's own voice and streams as such. Who had the
conversation in a run does not get it again, so that nobody plays ping-pong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.run import PatternTask, RunAgent, Terms
from astromesh.errors import ConfigError
from astromesh.graph.base import BaseNode
from astromesh.graph.config import NodeConfig
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.graph_pattern import NOTES, UNFINISHED, GraphPattern, unbounded_engine_of
from astromesh.orchestration.handoff import (
    Handoff,
    HandoffTools,
    instructions,
    said_handoff,
    written,
)
from astromesh.types import JsonObject

#: of the answering agent's metadata, what the swarm's run reports as its own
_REPORTED = ("provider", "model", "attempts")


class Swarm:
    """Agents that hand the conversation to each other; the first listed begins."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        agents: tuple[str, ...] = Field(min_length=1, description="Names of the agents; the first begins.")
        max_handoffs: int = Field(3, ge=0, description="Hand-offs of one run; then who has it answers.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Raises: ConfigError: nothing here can run agents."""
        run_agent = deps.run_agent
        if run_agent is None:
            raise ConfigError("The pattern swarm needs a runtime that runs its agents.")
        agents = {name: deps.agents.get(name, "") for name in dict.fromkeys(options.agents)}
        return GraphPattern(
            lambda iterations: unbounded_engine_of(
                swarm_graph(agents, options.max_handoffs, run_agent, iterations)
            ),
            SwarmNotes,
        )


@dataclass(slots=True)
class SwarmNotes:
    """Who had the conversation, in order, and what the last of them reported.

    Args:
        task: what the swarm was asked.
    """

    task: PatternTask
    turns: list[str] = field(default_factory=list)
    handed: Handoff | None = None
    iterations: int = 0
    reported: JsonObject = field(default_factory=dict)

    def metadata(self) -> JsonObject:
        handoffs = [{"from": one, "to": other} for one, other in pairwise(self.turns)]
        answered_by = self.turns[-1] if self.turns else ""
        return {
            **self.reported,
            "answered_by": answered_by,
            "handoffs": handoffs,
            "iterations": self.iterations,
        }


def swarm_graph(
    agents: Mapping[str, str], max_handoffs: int, run_agent: RunAgent, max_iterations: int
) -> PromptGraph:
    """A node for each agent, with ways to all the others.

    Args:
        agents: description by name; the first begins.
        max_handoffs: of one run.
        run_agent: runs one.
        max_iterations: model calls of the tool loop of each.
    """
    nodes = [AgentNode(name, agents, max_handoffs, run_agent, max_iterations) for name in agents]
    return PromptGraph("swarm", nodes=nodes).set_entry(next(iter(agents)))


class AgentNode(BaseNode):
    """Runs one agent on the conversation. Its answer, or the node of the agent it hands over to.

    Args:
        name: the agent's.
        agents: all of the swarm, description by name.
        max_handoffs: of one run.
        run_agent: runs it.
        max_iterations: model calls of its tool loop.
    """

    own = ("agents", "max_handoffs", "run_agent", "max_iterations")

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
        handed, notes.handed = notes.handed, None
        notes.turns.append(self.name)
        others = self._others(notes)
        told = (_received(notes, handed), instructions(others))
        offer = HandoffTools(others)
        said, details = await self._answer(notes, told, offer, config)
        notes.handed = offer.chosen or said_handoff(said, others)
        if notes.handed is not None:
            return NodeResult(self.name, next_node=notes.handed.agent, is_answer=False)
        if written(said) is not None:  # to itself, to nobody, or to who had it: meant for no reader
            said, details = await self._answer(notes, (told[0], _ALONE), HandoffTools({}), config)
        if written(said) is not None:
            return NodeResult(self.name, UNFINISHED, stop_reason="max_iterations")
        reason = details["stop_reason"]
        return NodeResult(self.name, said, stop_reason="" if reason == "completed" else reason)

    def _others(self, notes: SwarmNotes) -> dict[str, str]:
        if len(notes.turns) > self._max_handoffs:
            return {}
        return {name: about for name, about in self._agents.items() if name not in notes.turns}

    async def _answer(
        self, notes: SwarmNotes, told: Sequence[str], offer: HandoffTools, config: NodeConfig
    ) -> tuple[str, JsonObject]:
        system, *history, question = notes.task.messages
        terms = Terms(
            history=tuple(history),
            images=question.images,
            instructions="\n\n".join(filter(None, (system.content, *told))),
            tools=offer,
            max_iterations=self._rounds,
            speaks=True,
            withheld=_is_handoff,
        )
        # "o" is how traces call the span of the orchestration: the run stands right below it
        parent = config.scope.tool_context("o", self.name)
        answer = await self._run(self.name, question.content, notes.task.context, parent, terms)
        _note(notes, answer["metadata"], config)
        return answer["response"], answer["metadata"]


_ALONE = (
    "You tried to hand this conversation over, and nobody else can take it now. Answer the user yourself."
)


def _is_handoff(text: str) -> bool:
    return written(text) is not None


def _received(notes: SwarmNotes, handed: Handoff | None) -> str:
    if handed is None:
        return ""
    said = f" It says: {handed.message}" if handed.message else ""
    return f"The agent {notes.turns[-2]} handed this conversation to you.{said}"


def _note(notes: SwarmNotes, details: JsonObject, config: NodeConfig) -> None:
    config.scope.tools_called.extend(_without_handoffs(details["tools_called"]))
    notes.iterations += details["iterations"]
    notes.reported = {key: details[key] for key in _REPORTED if key in details}


def _without_handoffs(tools: Iterable[str]) -> Iterable[str]:
    return (tool for tool in tools if not tool.startswith("handoff_to_"))
