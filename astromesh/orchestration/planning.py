"""plan_and_execute: the nodes of its graph and what they note."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from astromesh.graph.config import NodeConfig
from astromesh.graph.extract import extract_values
from astromesh.graph.flags import NodeFlag
from astromesh.graph.function import FunctionNode
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes import PromptNode, SynthesizeNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.briefing import Briefed, ToolLoop, asked, used_up
from astromesh.orchestration.graph_pattern import NOTES
from astromesh.types import JsonObject, Message

#: what a worker that cannot do its step begins its answer with
FAILED = "FAILED"
#: steps of one plan; a longer list is a text with numbers in it and no plan
MOST_STEPS = 20
_GAVE_UP = re.compile(rf"\**{FAILED}\b[*:\s]*")
_ITEM = re.compile(r"^\s*(?:step\s+)?(\d+)[.):]\s+(.+)$", re.IGNORECASE)


@dataclass(slots=True)
class PlanNotes:
    """Where a run stands.

    Args:
        plan: the steps of the plan in force.
        position: steps of it that were begun.
        results: step and result of what is done, over all plans.
    """

    plan: list[str] = field(default_factory=list)
    position: int = 0
    results: list[tuple[str, str]] = field(default_factory=list)
    replans: int = 0

    @property
    def step(self) -> str:
        return self.plan[self.position - 1]

    def metadata(self) -> JsonObject:
        return {"plan": list(self.plan), "replans": self.replans}


_PLAN = (
    "Do not answer yet: plan. Break the task into as few steps as it needs, each of which a worker with your "
    "tools can carry out by itself, in the order in which they must be done. Where a step of an earlier plan "
    "failed, plan only what is left, another way. Answer with the numbered steps alone:\n"
    "1. FIRST STEP\n2. SECOND STEP"
)


class Planner(Briefed):
    """Has a numbered plan written. A text that holds none is a plan of one step: the question itself."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        if result.error:
            return result
        notes: PlanNotes = config[NOTES]
        notes.plan, notes.position = steps_of(str(result.raw_output)) or [state.question], 0
        state.plan[:] = notes.plan
        direct = len(notes.plan) == 1 and not notes.results
        return NodeResult(self.name, {"steps": len(notes.plan), "direct": direct}, is_answer=False)


class Worker(Briefed):
    """Carries out one step and notes its result. A step that it gives up has failed."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        notes: PlanNotes = config[NOTES]
        said = str(result.output or "").strip()
        if not result.error and (gave_up := _GAVE_UP.match(said)):
            return NodeResult(self.name, error=said[gave_up.end() :] or "it could not be done")
        if not result.error:
            notes.results.append((notes.step, said))
            state.observations.append(f"Done: {notes.step}\n{said}")
        return result


class PlanAnswer(SynthesizeNode):
    """Writes the answer from all results. It has no tools; a model that asks for some is told so, so often.

    Args:
        max_rounds: model calls.
    """

    def __init__(self, max_rounds: int, **keywords: Any) -> None:
        super().__init__("answer", routing="edges_only", **keywords)
        self.max_rounds = max_rounds

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if error := used_up(self.name, state, self.max_rounds):
            raise error
        return await super().execute(state, config)


def plan_graph(max_replans: int, max_iterations: int) -> PromptGraph:
    """Plan, carry out step after step, plan anew where one fails, answer.

    A plan of one step is carried out as the answer itself.

    Args:
        max_replans: further plans after the first.
        max_iterations: model calls of one step.
    """
    rounds: dict[str, Any] = {"max_rounds": max_iterations}
    critical = {NodeFlag.CRITICAL}
    graph = PromptGraph("plan_and_execute")
    graph.add_node(Planner("plan", _planner(), _state_of_things, flags=critical))
    graph.add_node(Briefed("direct", ToolLoop("act", **rounds), is_terminal=True))
    graph.add_node(FunctionNode("next_step", _next_step))
    step = ToolLoop("act", role="worker", model_override="worker", **rounds)
    graph.add_node(Worker("step", step, _brief))
    graph.add_node(FunctionNode("replan", _replan(max_replans)))
    graph.add_node(PlanAnswer(max_iterations, flags=critical, is_terminal=True))
    graph.set_entry("plan").on_output("plan", "direct", "direct", True).always("plan", "next_step")
    graph.on_error("direct", "replan")
    graph.on_output("next_step", "step", "more", True).always("next_step", "answer")
    graph.on_error("step", "replan").always("step", "next_step")
    graph.on_output("replan", "plan", "again", True).always("replan", "answer")
    return graph


def _planner() -> PromptNode:
    # it has no tools, so that what it says is all: a model that asks for some has written no plan
    return PromptNode(
        "write",
        role="planner",
        instructions=_PLAN,
        model_override="planner",
        tool_loop=False,
        routing="edges_only",
    )


def _state_of_things(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    return asked(state.messages, **{"So far": "\n\n".join(map(str, state.observations))})


def steps_of(text: str) -> list[str]:
    """The steps of a numbered plan, or of a JSON list; none where a text is neither.

    Numbers must begin at 1 and go up by one: other numbered lines are quotations, not a plan.
    """
    for value in extract_values(text):
        if steps := _listed(value):
            return steps
    found = [match for line in text.splitlines() if (match := _ITEM.match(line))]
    numbers = [int(match[1]) for match in found]
    if not found or numbers != list(range(1, len(found) + 1)) or len(found) > MOST_STEPS:
        return []
    return [match[2].strip() for match in found]


def _listed(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = value.get("steps", value.get("plan"))
    if not isinstance(value, list):
        return []
    texts = [item.get("step") or item.get("task") if isinstance(item, dict) else item for item in value]
    steps = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    return steps if len(steps) == len(value) <= MOST_STEPS else []


def _next_step(state: GraphState, config: NodeConfig) -> JsonObject:
    """Takes the next step of the plan."""
    notes: PlanNotes = config[NOTES]
    if notes.position >= len(notes.plan):
        return {"more": False}
    notes.position += 1
    return {"more": True, "number": notes.position, "step": notes.step}


def _replan(max_replans: int) -> Any:
    def replan(state: GraphState, config: NodeConfig) -> JsonObject:
        """Notes what failed, and whether there may be another plan."""
        notes: PlanNotes = config[NOTES]
        failure = state.node_history[-1]
        step = notes.plan[max(notes.position, 1) - 1]
        state.observations.append(f"Failed: {step}\n{failure.error}")
        if notes.replans >= max_replans:
            return {"again": False}
        notes.replans += 1
        return {"again": True}

    return replan


def _brief(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    notes: PlanNotes = config[NOTES]
    done = "\n\n".join(f"{step}\n{result}" for step, result in notes.results)
    step = (
        f"{notes.step}\n\nCarry out this step alone and state its result. If it cannot be done, answer "
        f"{FAILED}: and the reason."
    )
    return asked(state.messages, **{"Results so far": done, "Your step": step})
