"""Prebuilt graphs: the patterns that most agents need. Each function returns a new PromptGraph.

All of them can be written to YAML. Nodes that a caller passes are used as they are and never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes import (
    AutonomousNode,
    CritiqueNode,
    ObserveNode,
    PlanNode,
    PromptNode,
    ReflectNode,
    SubgraphNode,
    SynthesizeNode,
    ThinkNode,
)
from astromesh.graph.nodes.function import FunctionNode
from astromesh.graph.state import GraphState

__all__ = [
    "autonomous",
    "debate",
    "deliberate",
    "pipeline",
    "plan_and_execute",
    "react",
    "reasoning_controller",
]


#: See `astromesh.graph.reasoning`. It is imported on first access: a tenth of the import time of the engine.
reasoning_controller: Callable[..., PromptGraph]


def __getattr__(name: str) -> Any:
    if name == "reasoning_controller":
        return import_module("astromesh.graph.reasoning").reasoning_controller
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def react(
    instructions: str = "",
    *,
    tools: Sequence[Any] | None = None,
    max_iterations: int | None = None,
    input_keys: Sequence[str] = (),
    role: str = "",
    name: str = "react",
) -> PromptGraph:
    """One model that calls tools until it answers.

    Args:
        instructions: The system prompt. Empty leaves the one in the messages as it is.
        tools: The default is all tools of the engine.
        max_iterations: Model calls. The default are the engine's limits.
        input_keys: Names in the context that it reads.
        role: The role in which it asks. The default is `assistant`.
        name: The name of the graph.
    """
    node = PromptNode(
        "react",
        role=role,
        instructions=instructions,
        tools=tools or (),
        inject_tools=tools is None,
        input_keys=input_keys,
        max_iterations=max_iterations,
        is_entry=True,
        is_terminal=True,
        routing="edges_only",  # the answer is for the reader and leaves unchanged
    )
    return PromptGraph(name, nodes=[node])


#: The current step of a plan and its position, in the context.
STEP, POSITION = "step", "_step_position"


def plan_and_execute(
    instructions: str = "",
    *,
    max_replans: int = 1,
    max_iterations: int | None = None,
    name: str = "plan_and_execute",
) -> PromptGraph:
    """A planner splits the task into steps, a worker does each with tools, then the answer is written.

    After a failed step the rest is planned again, at most `max_replans` times in one run.

    Args:
        instructions: What all nodes should know.
        max_replans: Further plans after the first.
        max_iterations: Model calls of one step.
        name: The name of the graph.
    """
    worker_prompt = f"{instructions}\nCarry out this step of the plan and state its result.".strip()
    worker = react(
        worker_prompt, max_iterations=max_iterations, input_keys=(STEP,), role="worker", name="worker"
    )
    graph = PromptGraph(name)
    graph.add_node(
        PlanNode("plan", instructions=instructions, model_override="planner", routing="edges_only")
    )
    graph.add_node(FunctionNode("next_step", next_step, inline=True, flags={NodeFlag.STATEFUL}))
    graph.add_node(SubgraphNode("work", worker))
    graph.add_node(FunctionNode("replan", note_failure, inline=True, flags={NodeFlag.STATEFUL}))
    graph.add_node(
        SynthesizeNode("answer", instructions=instructions, is_terminal=True, routing="edges_only")
    )
    graph.set_entry("plan").always("plan", "next_step")
    graph.on_output("next_step", "work", "more", True).always("next_step", "answer")
    graph.on_error("work", "replan").always("work", "next_step")
    for attempt in range(1, max_replans + 1):
        graph.on_output("replan", "plan", "replans", attempt)
    return graph.always("replan", "answer")


def next_step(state: GraphState) -> dict[str, Any]:
    """Takes the next step of the plan."""
    position = state.context.get(POSITION, 0)
    if position >= len(state.plan):
        state.context.pop(STEP, None)
        return {"more": False}
    state.context[STEP], state.context[POSITION] = state.plan[position], position + 1
    return {"more": True, "step": state.plan[position], "number": position + 1}


def note_failure(state: GraphState) -> dict[str, Any]:
    """Tells the planner which step failed, and counts the plans."""
    failed = next((r.error for r in reversed(state.node_history) if r.error), "")
    state.observations.append(f"The step {state.context.get(STEP)!r} failed: {failed}")
    state.context[POSITION] = 0
    state.context["_replans"] = replans = state.context.get("_replans", 0) + 1
    return {"replans": replans}


def deliberate(instructions: str = "", *, name: str = "deliberate") -> PromptGraph:
    """Think, plan, act with tools, observe, reflect, answer: each once."""
    act = PromptNode(
        "act",
        role="worker",
        instructions=f"{instructions}\nCarry out the plan with your tools and state the results.".strip(),
        input_keys=("thought",),
        inject_tools=True,
        routing="edges_only",
    )
    nodes: list[BaseNode] = [
        ThinkNode("think", instructions=instructions, output_key="thought"),
        PlanNode("plan", instructions=instructions, input_keys=("thought",), routing="edges_only"),
        act,
        ObserveNode("observe"),
        ReflectNode("reflect", instructions=instructions),
        SynthesizeNode(
            "answer",
            instructions=instructions,
            input_keys=("entities", "facts"),
            is_terminal=True,
            routing="edges_only",
        ),
    ]
    return PromptGraph(name, nodes=nodes).sequential(*(node.name for node in nodes))


def debate(instructions: str = "", *, rounds: int = 2, name: str = "debate") -> PromptGraph:
    """A proposer and a critic alternate, a judge decides, then the answer is written.

    Args:
        instructions: What all nodes should know.
        rounds: Turns of the proposer. There are fewer if the critic finds nothing more.
        name: The name of the graph.
    """
    if rounds < 1:
        raise ValueError(f"A debate has at least one round, not {rounds}.")
    proposer = PromptNode(
        "proposer",
        role="proposer",
        instructions=f"{instructions}\nPropose the best answer. Meet the critique, if there is one.".strip(),
        input_keys=("proposal", "critique"),
        output_key="proposal",
        inject_tools=True,
        routing="edges_only",
    )
    judge = PromptNode(
        "judge",
        role="judge",
        instructions="Judge the debate: which points of the proposal and of the critique hold, and why.",
        input_keys=("proposal", "critique"),
        output_key="verdict",
        model_override="judge",
        routing="edges_only",
    )
    critic = CritiqueNode(
        "critic",
        instructions=instructions,
        input_keys=("proposal",),
        output_key="critique",
        model_override="critic",
        routing="edges_only",
    )
    count = FunctionNode("count_round", count_round, inline=True, flags={NodeFlag.STATEFUL})
    keys = ("proposal", "critique", "verdict")
    answer = SynthesizeNode(
        "answer", instructions=instructions, input_keys=keys, is_terminal=True, routing="edges_only"
    )
    graph = PromptGraph(name, nodes=[proposer, critic, count, judge, answer])
    graph.always("proposer", "critic")
    graph.on_output("critic", "judge", "severity", "none").always("critic", "count_round")
    for done in range(1, rounds):
        graph.on_output("count_round", "proposer", "rounds", done)
    return graph.always("count_round", "judge").always("judge", "answer")


def count_round(state: GraphState) -> dict[str, Any]:
    """Counts the rounds of a debate."""
    state.context["_rounds"] = rounds = state.context.get("_rounds", 0) + 1
    return {"rounds": rounds}


def pipeline(stages: Iterable[BaseNode | Mapping[str, Any]], *, name: str = "pipeline") -> PromptGraph:
    """Stages one after another. Each builds on the one before.

    Args:
        stages: Nodes, or mappings `{name, prompt, role?}` as in an agent's YAML. `role` names the model.
        name: The name of the graph.

    Raises:
        ValueError: There is no stage.
    """
    listed = list(stages)
    if not listed:
        raise ValueError("A pipeline needs at least one stage.")
    nodes: list[BaseNode] = []
    for place, stage in enumerate(listed):
        last = place == len(listed) - 1
        nodes.append(stage if isinstance(stage, BaseNode) else _stage(stage, nodes, last))
    return PromptGraph(name, nodes=nodes).sequential(*(node.name for node in nodes))


def _stage(stage: Mapping[str, Any], before: Sequence[BaseNode], last: bool) -> PromptNode:
    return PromptNode(
        stage["name"],
        role="" if last else stage.get("role", "") or stage["name"],
        instructions=stage["prompt"],
        inherit_context_from=before[-1].name if before else "",
        model_override=stage.get("role") or None,
        inject_tools=True,
        is_terminal=last,
        routing="edges_only",
    )


def autonomous(
    pool: Iterable[BaseNode], *, max_steps: int = 10, instructions: str = "", name: str = "autonomous"
) -> PromptGraph:
    """The model itself builds the path out of a pool of nodes.

    Args:
        pool: See `AutonomousNode`.
        max_steps: Choices of the model.
        instructions: What to choose by.
        name: The name of the graph.
    """
    node = AutonomousNode(name, pool, max_steps, instructions=instructions, is_terminal=True)
    return PromptGraph(name, nodes=[node])
