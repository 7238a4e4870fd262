"""The graph: 13 nodes, 21 edges, a finalizer. Nothing that a model says decides where to go by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.function import FunctionNode
from astromesh.graph.graph import PromptGraph
from astromesh.graph.reasoning import answers, setup, steps
from astromesh.graph.reasoning.report import SCHEMA
from astromesh.graph.reasoning.settings import ReasoningSettings
from astromesh.graph.records import END

FINALIZE = "finalize_response"
_STOP = ("stop", True)


def reasoning_controller(
    settings: ReasoningSettings | Mapping[str, Any] | None = None, *, name: str = "reasoning"
) -> PromptGraph:
    """The reasoning controller as a graph.

    The run's fields are `result.context["rc"]`, its final_output is `result.output`. The context may hold
    `reasoning`, what a request narrows: constraints, evidence, allowed_tools, available_strategies, budget.
    An engine of its own needs `max_iterations=settings.max_iterations` where budgets are above the defaults.

    Args:
        settings: `ReasoningSettings`, or a mapping with the keys of the YAML; None for the defaults.
        name: of the graph.

    Raises:
        InvalidSettings: a setting is wrong.
    """
    valid = ReasoningSettings.of(settings)
    graph = PromptGraph(name, nodes=_nodes(valid), routing="edges_only")
    for source, target, key, value, priority in EDGES:
        graph.on_output(source, target, key, value, priority=priority)
    for source, target in STRAIGHT:
        graph.always(source, target)
    return graph.set_entry("prepare_task").set_finalizer(FINALIZE)


#: in declared order of priority: where from, where to, the field of the output and its value
EDGES: tuple[tuple[str, str, str, Any, int], ...] = (
    ("prepare_task", FINALIZE, *_STOP, 2),
    ("prepare_task", "analyze_task", "rd", "continue", 1),
    ("analyze_task", "select_reasoning_strategy", "rd", "continue", 1),
    ("select_reasoning_strategy", FINALIZE, *_STOP, 2),
    ("select_reasoning_strategy", "prepare_working_memory", "rd", "continue", 1),
    ("prepare_working_memory", "propose_next_step", "rd", "continue", 1),
    ("propose_next_step", "run_tool_action", "rd", "use_tool", 3),
    ("propose_next_step", "execute_reasoning_step", "rd", "continue", 2),
    ("propose_next_step", "evaluate_progress", "rd", "evaluate", 1),
    ("execute_reasoning_step", "evaluate_progress", "rd", "evaluate", 1),
    ("run_tool_action", "evaluate_progress", "rd", "evaluate", 1),
    ("evaluate_progress", "draft_answer", "rd", "draft", 4),
    ("evaluate_progress", FINALIZE, *_STOP, 3),
    ("evaluate_progress", "switch_strategy", "rd", "switch_strategy", 2),
    ("evaluate_progress", "propose_next_step", "rd", "continue", 1),
    ("switch_strategy", "propose_next_step", "rd", "continue", 1),
    ("draft_answer", "critique_answer", "rd", "critique", 1),
    ("critique_answer", "revise_answer", "rd", "revise", 2),
    ("critique_answer", FINALIZE, "rd", "finalize", 1),
    ("revise_answer", FINALIZE, "rd", "finalize", 1),
)
STRAIGHT = ((FINALIZE, END),)


def _nodes(settings: ReasoningSettings) -> list[BaseNode]:
    stateful, observable = {NodeFlag.STATEFUL}, {NodeFlag.OBSERVABLE}
    # a loop with a bound of its own is no circle (CycleDetectionHook)
    most = settings.max_iterations
    # what breaks inside a node, or is changed by a hook, ends in the report and not nowhere
    last: Any = {"default_next": FINALIZE}
    return [
        setup.PrepareTask("prepare_task", settings.to_json(), inject_tools=True, **last),
        FunctionNode("analyze_task", setup.analyze_task, flags={NodeFlag.LIGHTWEIGHT}, **last),
        FunctionNode(
            "select_reasoning_strategy", setup.select_reasoning_strategy, flags={NodeFlag.LIGHTWEIGHT}, **last
        ),
        FunctionNode("prepare_working_memory", setup.prepare_working_memory, flags=stateful, **last),
        FunctionNode(
            "propose_next_step",
            steps.propose_next_step,
            flags=stateful,
            inject_tools=True,
            max_iterations=most,
            **last,
        ),
        FunctionNode(
            "execute_reasoning_step",
            steps.execute_reasoning_step,
            flags=stateful,
            max_iterations=most,
            **last,
        ),
        FunctionNode(
            "run_tool_action",
            steps.run_tool_action,
            flags=stateful,
            inject_tools=True,
            max_iterations=most,
            **last,
        ),
        FunctionNode(
            "evaluate_progress", steps.evaluate_progress, flags=observable, max_iterations=most, **last
        ),
        FunctionNode("switch_strategy", steps.switch_strategy, flags=observable, max_iterations=most, **last),
        FunctionNode("draft_answer", answers.draft_answer, flags=stateful, inject_tools=True, **last),
        FunctionNode(
            "critique_answer",
            answers.critique_answer,
            flags={NodeFlag.READONLY, NodeFlag.OBSERVABLE},
            **last,
        ),
        FunctionNode("revise_answer", answers.revise_answer, flags=stateful, **last),
        FunctionNode(
            FINALIZE,
            answers.finalize_response,
            flags={NodeFlag.VALIDATE_OUTPUT},
            output_schema=SCHEMA,
            is_terminal=True,
        ),
    ]
