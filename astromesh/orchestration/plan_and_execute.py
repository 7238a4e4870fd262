"""plan_and_execute: the model plans, works step by step with tools, and answers.

After a failed step it plans again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import Field

from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import extract_values
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes import PromptNode, SynthesizeNode
from astromesh.graph.nodes.function import FunctionNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.patterns import (
    NOTES,
    GraphPattern,
    IsolatedNode,
    PatternOptions,
    ToolLoop,
    append_sections,
    rounds_error,
)
from astromesh.plugins import Deps
from astromesh.types import JsonObject, Message

#: The first word of the answer of a worker that cannot do its step.
FAILED = "FAILED"
#: The limit of steps of a plan. A longer numbered list is not a plan.
MAX_STEPS = 20
_GAVE_UP = re.compile(rf"\**{FAILED}\b[*:\s]*")
_ITEM = re.compile(r"^\s*(?:step\s+)?(\d+)[.):]\s+(.+)$", re.IGNORECASE)


@dataclass(slots=True)
class PlanNotes:
    """The progress of a run.

    Args:
        plan: The steps of the current plan.
        position: The number of started steps of the current plan.
        results: The finished steps and their results, over all plans.
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


class Planner(IsolatedNode):
    """Asks the model for a numbered plan. A text without one is a plan of one step, the question."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        if result.error:
            return result
        notes: PlanNotes = config[NOTES]
        notes.plan, notes.position = parse_steps(str(result.raw_output)) or [state.question], 0
        state.plan[:] = notes.plan
        direct = len(notes.plan) == 1 and not notes.results
        return NodeResult(self.name, {"steps": len(notes.plan), "direct": direct}, is_answer=False)


class Worker(IsolatedNode):
    """Carries out one step and records its result, or its failure."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        notes: PlanNotes = config[NOTES]
        answer = str(result.output or "").strip()
        if not result.error and (gave_up := _GAVE_UP.match(answer)):
            return NodeResult(self.name, error=answer[gave_up.end() :] or "it could not be done")
        if not result.error:
            notes.results.append((notes.step, answer))
            state.observations.append(f"Done: {notes.step}\n{answer}")
        return result


class PlanAnswer(SynthesizeNode):
    """Writes the answer from all results, without tools.

    Args:
        max_rounds: The limit of model calls. A model that still asks for tools uses them up.
    """

    def __init__(self, max_rounds: int, **keywords: Any) -> None:
        super().__init__("answer", routing="edges_only", **keywords)
        self.max_rounds = max_rounds

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if error := rounds_error(self.name, state, self.max_rounds):
            raise error
        return await super().execute(state, config)


def plan_graph(max_replans: int, max_iterations: int) -> PromptGraph:
    """Returns the graph that plans, carries out the steps, plans again after a failure, and answers.

    The result of a plan of one step is the answer.

    Args:
        max_replans: Further plans after the first.
        max_iterations: The model calls of one step.
    """
    rounds: dict[str, Any] = {"max_rounds": max_iterations}
    critical = {NodeFlag.CRITICAL}
    graph = PromptGraph("plan_and_execute")
    graph.add_node(Planner("plan", _planner(), _planner_messages, flags=critical))
    graph.add_node(IsolatedNode("direct", ToolLoop("act", **rounds), is_terminal=True))
    graph.add_node(FunctionNode("next_step", _next_step, inline=True))
    step = ToolLoop("act", role="worker", model_override="worker", **rounds)
    graph.add_node(Worker("step", step, _step_messages))
    graph.add_node(FunctionNode("replan", _replan(max_replans), inline=True))
    graph.add_node(PlanAnswer(max_iterations, flags=critical, is_terminal=True))
    graph.set_entry("plan").on_output("plan", "direct", "direct", True).always("plan", "next_step")
    graph.on_error("direct", "replan")
    graph.on_output("next_step", "step", "more", True).always("next_step", "answer")
    graph.on_error("step", "replan").always("step", "next_step")
    graph.on_output("replan", "plan", "again", True).always("replan", "answer")
    return graph


def _planner() -> PromptNode:
    # without tools: a model that asks for tools has not written a plan
    return PromptNode(
        "write",
        role="planner",
        instructions=_PLAN,
        model_override="planner",
        tool_loop=False,
        routing="edges_only",
    )


def _planner_messages(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    return append_sections(state.messages, **{"So far": "\n\n".join(map(str, state.observations))})


def parse_steps(text: str) -> list[str]:
    """Returns the steps of a numbered plan or of a JSON list. Other texts have none.

    Numbers must begin at 1 and increase by one: other numbered lines are not a plan.
    """
    for value in extract_values(text):
        if steps := _json_steps(value):
            return steps
    found = [match for line in text.splitlines() if (match := _ITEM.match(line))]
    numbers = [int(match[1]) for match in found]
    if not found or numbers != list(range(1, len(found) + 1)) or len(found) > MAX_STEPS:
        return []
    return [match[2].strip() for match in found]


def _json_steps(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = value.get("steps", value.get("plan"))
    if not isinstance(value, list):
        return []
    texts = [item.get("step") or item.get("task") if isinstance(item, dict) else item for item in value]
    steps = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    return steps if len(steps) == len(value) <= MAX_STEPS else []


def _next_step(state: GraphState, config: NodeConfig) -> JsonObject:
    """Takes the next step of the plan."""
    notes: PlanNotes = config[NOTES]
    if notes.position >= len(notes.plan):
        return {"more": False}
    notes.position += 1
    return {"more": True, "number": notes.position, "step": notes.step}


def _replan(max_replans: int) -> Any:
    def replan(state: GraphState, config: NodeConfig) -> JsonObject:
        """Notes what failed, and decides whether there may be another plan."""
        notes: PlanNotes = config[NOTES]
        failure = state.node_history[-1]
        step = notes.plan[max(notes.position, 1) - 1]
        state.observations.append(f"Failed: {step}\n{failure.error}")
        if notes.replans >= max_replans:
            return {"again": False}
        notes.replans += 1
        return {"again": True}

    return replan


def _step_messages(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    notes: PlanNotes = config[NOTES]
    done = "\n\n".join(f"{step}\n{result}" for step, result in notes.results)
    step = (
        f"{notes.step}\n\nCarry out this step alone and state its result. If it cannot be done, answer "
        f"{FAILED}: and the reason."
    )
    return append_sections(state.messages, **{"Results so far": done, "Your step": step})


class PlanAndExecute:
    """A numbered plan, carried out step by step with tools. After a failed step the model plans again."""

    class Options(PatternOptions):
        max_replans: int = Field(1, ge=0, description="Further plans after the first.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(partial(plan_graph, options.max_replans), lambda task: PlanNotes())
