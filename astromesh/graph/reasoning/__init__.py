"""The reasoning controller of document 003, itself a reconstruction (docs/reasoning.md): one graph.

It profiles a task, selects a strategy, takes evaluated steps within budgets, drafts, criticises, revises and
reports. This module makes the graph: 13 nodes, 21 edges, a finalizer. Code alone decides which node follows.
The pattern `reasoning` of an agent's YAML is `astromesh.orchestration.reasoning`.

    setup        nodes: prepare, analyze, select        settings   what an operator may set
    controller   nodes: the loop and the answer         state      the 26 fields of a run, the five budgets
    rules        which strategy, route and status;      prompts    what the model is asked, and the call
                 the 12 keys of final_output            parsing    what a model wrote, made safe
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes.function import FunctionNode
from astromesh.graph.reasoning import controller, setup
from astromesh.graph.reasoning.rules import SCHEMA
from astromesh.graph.reasoning.state import (
    BUDGETS,
    STRATEGIES,
    InvalidSettings,
    ReasoningSettings,
    ReasoningState,
    StrategySpec,
)
from astromesh.graph.records import END

__all__ = [
    "BUDGETS",
    "STRATEGIES",
    "InvalidSettings",
    "ReasoningSettings",
    "ReasoningState",
    "StrategySpec",
    "reasoning_controller",
]

FINALIZE = "finalize_response"
_STOP = ("stop", True)


def reasoning_controller(
    settings: ReasoningSettings | Mapping[str, Any] | None = None, *, name: str = "reasoning"
) -> PromptGraph:
    """Returns the reasoning controller as a graph.

    The run's fields are `result.context["rc"]`, its final_output is `result.output`. The context may hold
    `reasoning`, with which a request narrows: constraints, evidence, allowed_tools, available_strategies,
    budget. If budgets are above the defaults, an engine of its own needs
    `max_iterations=settings.max_iterations`.

    Args:
        settings: `ReasoningSettings`, or a mapping with the keys of the YAML. None for the defaults.
        name: The name of the graph.

    Raises:
        InvalidSettings: A setting is invalid.
    """
    valid = ReasoningSettings.of(settings)
    graph = PromptGraph(name, nodes=_nodes(valid), routing="edges_only")
    for source, target, key, value, priority in EDGES:
        graph.on_output(source, target, key, value, priority=priority)
    return graph.always(FINALIZE, END).set_entry("prepare_task").set_finalizer(FINALIZE)


#: Source, target, field of the output, its value, priority.
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


def _nodes(settings: ReasoningSettings) -> list[BaseNode]:
    stateful, observable, light = {NodeFlag.STATEFUL}, {NodeFlag.OBSERVABLE}, {NodeFlag.LIGHTWEIGHT}
    # after a failure in a node or a change by a hook the run still ends in the report
    node = partial(FunctionNode, default_next=FINALIZE, effect="read")  # their calls are recorded
    # CycleDetectionHook ignores nodes with a limit of their own
    loop = partial(node, max_iterations=settings.max_iterations)
    return [
        setup.PrepareTask("prepare_task", settings.to_json(), inject_tools=True, default_next=FINALIZE),
        node("analyze_task", setup.analyze_task, flags=light),
        node("select_reasoning_strategy", setup.select_reasoning_strategy, flags=light),
        node("prepare_working_memory", setup.prepare_working_memory, inline=True, flags=stateful),
        loop("propose_next_step", controller.propose_next_step, flags=stateful, inject_tools=True),
        loop("execute_reasoning_step", controller.execute_reasoning_step, flags=stateful),
        loop("run_tool_action", controller.run_tool_action, flags=stateful, inject_tools=True),
        loop("evaluate_progress", controller.evaluate_progress, flags=observable),
        loop("switch_strategy", controller.switch_strategy, inline=True, flags=observable),
        node("draft_answer", controller.draft_answer, flags=stateful, inject_tools=True),
        node("critique_answer", controller.critique_answer, flags={NodeFlag.READONLY, *observable}),
        node("revise_answer", controller.revise_answer, flags=stateful),
        FunctionNode(
            FINALIZE,
            controller.finalize_response,
            inline=True,
            flags={NodeFlag.VALIDATE_OUTPUT},
            output_schema=SCHEMA,
            is_terminal=True,
        ),
    ]
