"""The pattern that runs a graph: what a run that failed raises, and which of its nodes is blamed."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.errors import AstromeshError, NodeFailed, ProviderUnavailable
from astromesh.graph import (
    BaseNode,
    FunctionNode,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
)
from astromesh.graph.scope import Scope
from astromesh.orchestration.base import PatternTask
from astromesh.orchestration.patterns import GraphPattern, autonomous_graph
from astromesh.testing import ScriptedProvider
from astromesh.tools.toolbox import ToolBox
from astromesh.types import Message


def breaks(name: str, **keywords: Any) -> FunctionNode:
    def body(state: Any) -> None:
        raise ProviderUnavailable("The service is down.")

    return FunctionNode(name, body, **keywords)


def says(name: str, value: Any) -> BaseNode:
    return FunctionNode(name, lambda state: value)


async def failure_of(graph: PromptGraph) -> AstromeshError:
    pattern = GraphPattern(graph)
    task = PatternTask((Message("user", "Why?"),), (), 10)
    with pytest.raises(AstromeshError) as raised:
        await pattern.run(task, ScriptedProvider(), ToolBox(()), Scope("r1"))
    return raised.value


async def test_a_failure_that_was_led_around_is_not_what_the_run_failed_with() -> None:
    """The error edge led on from it; what it led to has failed for a reason of its own."""
    graph = PromptGraph(nodes=[breaks("ask"), says("instead", NodeResult(error="Nothing is left."))])
    failure = await failure_of(graph.on_error("ask", "instead"))
    assert type(failure) is NodeFailed
    assert (str(failure), failure.node) == ("instead: Nothing is left.", "instead")


async def test_what_stopped_a_run_is_raised_behind_its_finalizer_too() -> None:
    graph = PromptGraph(nodes=[breaks("ask", flags={NodeFlag.CRITICAL}), says("tidy", None)])
    failure = await failure_of(graph.set_finalizer("tidy"))
    assert type(failure) is ProviderUnavailable
    assert failure.node == "ask"


async def test_what_a_child_raised_is_the_cause_where_it_stopped_the_run() -> None:
    graph = PromptGraph(nodes=[ParallelNode("both", [says("one", 1), breaks("two", flags=["critical"])])])
    failure = await failure_of(graph)
    assert type(failure) is ProviderUnavailable
    assert str(failure) == "The service is down."


async def test_only_unusable_choices_in_a_row_take_the_choice_from_the_model() -> None:
    """Not an output that reads like the line about an unusable choice."""
    pool: list[dict[str, Any]] = [
        {"name": "look", "kind": "prompt", "instructions": "Look it up."},
        {"name": "answer", "kind": "prompt", "instructions": "Answer.", "is_terminal": True},
    ]
    said = ['{"next_node": "look"}', "It is not one of the nodes.", "?", '{"next_node": "answer"}', "Done."]
    model = ScriptedProvider(*said)
    result = await PromptGraphEngine(autonomous_graph(pool, 9), model).ainvoke("Which?")
    assert (result.output, len(model.requests)) == ("Done.", 5)
    model = ScriptedProvider("?", "?", "Looked.", '{"next_node": "answer"}', "Done.")
    result = await PromptGraphEngine(autonomous_graph(pool, 9), model).ainvoke("Look it up")
    assert result.report.nodes_visited[1:] == ["autonomous/look", "autonomous/answer"]
