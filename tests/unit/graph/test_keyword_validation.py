"""Slips of the pen in graphs of Python: each is refused where it is made, or is a problem at `validate()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from astromesh.graph import (
    AutonomousNode,
    FanOutNode,
    FunctionNode,
    Guard,
    GuardNode,
    HumanNode,
    LoopNode,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RetryNode,
    SubgraphNode,
    TransformNode,
)
from astromesh.testing import ScriptedProvider

WRONG: Any = 5
SLIP: Any = "edge_only"
NODE = PromptNode("p")


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"routing": "edge_only"}, "routing must be 'edges_only'"),
        ({"flags": "critical"}, "flags takes a list or set"),
        ({"flags": [["critical"]]}, "flags takes a list or set"),
        ({"guards": [5]}, "guards takes a list of functions"),
        ({"guards": 5}, "guards takes a list of functions"),
        ({"max_iterations": 1.5}, "max_iterations must be a whole number"),
        ({"max_iterations": True}, "max_iterations must be a whole number"),
        ({"max_iterations": 0}, "max_iterations must be a whole number of at least 1"),
        ({"timeout": float("nan")}, "timeout must be more than 0 s"),
        ({"timeout": "5"}, "timeout must be more than 0 s"),
        ({"timeout": -1}, "timeout must be more than 0 s"),
        ({"output_key": "_awaiting_human"}, "output_key must be a context key"),
        ({"output_key": 5}, "output_key must be a context key"),
        ({"transitions": {"x": 5}}, "transitions takes a mapping to names"),
        ({"transitions": ["x"]}, "transitions takes a mapping to names"),
        ({"default_next": 5}, "default_next must be the name"),
        ({"routes": [None]}, "routes takes a list of names"),
        ({"routes": "abc"}, "routes takes a list of names"),
        ({"input_keys": "abc"}, "input_keys takes a list of names"),
        ({"preprocessor": 5}, "preprocessor must be a function"),
        ({"tools": 5}, "tools takes a list"),
        ({"instructions": 5}, "instructions must be a text"),
        ({"description": 5}, "description must be a text"),
        ({"strategy": 5}, "strategy must be a strategy"),
        ({"perspective": [1]}, "perspective must be a perspective"),
        ({"model_override": 5}, "model_override must be a model"),
        ({"pure": "no"}, "pure must be true or false"),
        ({"tool_loop": "no"}, "tool_loop must be true or false"),
        ({"is_terminal": "no"}, "is_terminal must be true or false"),
    ],
)
def test_a_keyword_of_a_wrong_kind_is_refused_by_name(keywords, words):
    with pytest.raises((TypeError, ValueError), match=f"^Node 'd': {words}"):
        PromptNode("d", **keywords)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PromptGraph(routing=SLIP),
        lambda: PromptGraph(mode=SLIP),
        lambda: PromptGraph(WRONG),
        lambda: PromptGraph(nodes=[WRONG]),
        lambda: PromptNode(WRONG),
        lambda: ParallelNode("p", []),
        lambda: ParallelNode("p", [WRONG]),
        lambda: SubgraphNode("f", WRONG),
        lambda: SubgraphNode("f", NODE),
        lambda: TransformNode("t", WRONG),
        lambda: FunctionNode("t", WRONG),
        lambda: RetryNode("r", WRONG),
        lambda: FanOutNode("f", WRONG),
        lambda: FanOutNode("f", NODE, item_key=WRONG),
        lambda: FanOutNode("f", NODE, item_key="_awaiting_human"),
        lambda: LoopNode("l", WRONG, until="done"),
        lambda: LoopNode("l", NODE, until=WRONG),
        lambda: LoopNode("l", NODE, until="done", max_loops=WRONG / 2),
        lambda: AutonomousNode("a", [NODE], max_steps=WRONG / 2),
        lambda: AutonomousNode("a", [WRONG]),
        lambda: HumanNode("h", approval_timeout=-1),
        lambda: HumanNode("h", approval_timeout=float("nan")),
        lambda: Guard(bool, "retry", max_retries=WRONG / 2),
        lambda: PromptGraphEngine(PromptGraph(nodes=[NODE]), finalizer_seconds=float("nan")),
        lambda: PromptGraph(nodes=[NODE]).when("p", "p", WRONG),
        lambda: PromptGraph(nodes=[NODE]).always("p", WRONG),
        lambda: PromptGraph(nodes=[NODE]).always("p", "p", label=WRONG),
        lambda: PromptGraph(nodes=[NODE]).always("p", "p", priority=SLIP),
        lambda: PromptGraphEngine(PromptGraph(nodes=[NODE]), ScriptedProvider(), max_iterations=WRONG / 2),
        lambda: PromptGraphEngine(PromptGraph(nodes=[NODE]), ScriptedProvider(), max_node_iterations=True),
    ],
)
def test_a_slip_in_a_graph_is_refused_where_it_is_made(make: Callable[[], Any]):
    with pytest.raises((TypeError, ValueError)):
        make()


def test_a_guard_without_checks_is_a_problem():
    graph = PromptGraph(nodes=[GuardNode("g")])
    assert graph.validate() == ["Node 'g': guards: a GuardNode without guards accepts everything."]


def test_names_that_mermaid_would_read_as_something_else_are_drawn_as_they_are():
    drawn = PromptGraph(nodes=[PromptNode("#quot;"), PromptNode("`code`")]).to_mermaid()
    assert 'n0["#35;quot;"]' in drawn
    assert 'n1["#96;code#96;"]' in drawn
