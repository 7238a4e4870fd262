"""Graphs of plain data that are wrong: every fault is found, says so in words, and leads to its place."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from astromesh.errors import InvalidGraph
from astromesh.graph import AutonomousNode, PromptGraph, PromptNode, SubgraphNode
from astromesh.graph.serialization import find_problems, references


def found(data: Any) -> dict[str, str]:
    return {
        ".".join(map(str, problem.location)): problem.message for problem in find_problems(PromptGraph, data)
    }


def test_the_faults_of_nodes_that_can_be_made_are_found_beside_those_that_cannot():
    """Who leads to a node that could not be made is not blamed for it."""
    problems = found({
        "nodes": [
            5,
            {"name": "a", "kind": "promt"},
            {"name": "b", "kind": "prompt", "instruction": "x", "default_next": "nowhere"},
            {"name": "c", "timeout": -1, "transitions": {"x": "a"}},
            {"name": "d", "default_next": "a"},
        ],
        "finalizer": "gone",
        "edges": [{"from": "b", "to": "c"}, {"from": "c", "to": "zz"}],
    })  # fmt: skip
    assert problems == {
        "nodes.0": "must be a mapping, not 5.",
        "nodes.1.kind": "There is no kind of node 'promt'. Did you mean `prompt`?",
        "nodes.2.instruction": "unknown key `instruction`. Did you mean `instructions`?",
        "nodes.2.default_next": "Node 'b' has a transition to 'nowhere', which is not a node.",
        "nodes.3.timeout": "Node 'c': timeout must be more than 0 s, not -1.",
        "finalizer": "The finalizer 'gone' is not a node.",
        "edges.1.to": "Node 'c' has an edge to 'zz', which is not a node.",
    }


def test_what_validate_finds_stands_at_its_place_in_nested_graphs_too():
    inner = {"nodes": [{"name": "x", "default_next": "zz"}]}
    body = [{"name": "s", "kind": "subgraph", "graph": inner}]
    data = {"nodes": [{"name": "l", "kind": "loop", "body": body, "until": "done"}, {"name": "lost"}]}
    problems = found(data)
    assert problems["nodes.0.body.0.graph.nodes.0.default_next"].endswith("'zz', which is not a node.")
    assert problems["nodes.1"] == "Node 'lost' is never reached."


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (None, ""),
        (5, ""),
        ([], ""),
        ({"nodes": None}, "nodes"),
        ({"nodes": 5}, "nodes"),
        ({"nodes": [{"name": "a"}], "edges": None}, "edges"),
        ({"nodes": [{"name": "a"}], "entry": 5}, "entry"),
        ({"nodes": [{"name": "a"}], "mode": ["static"]}, "mode"),
        ({"nodes": [{"name": "a"}], "routing": "edge_only"}, "routing"),
        ({"nodes": [{"name": ["a"], "kind": "autonomous"}]}, "nodes.0.name"),
        ({"nodes": [{"name": "a", "kind": ["prompt"]}]}, "nodes.0.kind"),
        ({"nodes": [{"name": "a", "flags": 5}]}, "nodes.0.flags"),
        ({"nodes": [{"name": "a"}], "edges": [{"from": 5, "to": "a"}]}, "edges.0.from"),
        ({"nodes": [{"name": "a"}], "edges": [{"from": "a", "to": "a", "priority": "x"}]}, "edges.0"),
        ({"nodes": [{"name": "a"}], "edges": [{"from": "a", "to": "a", "label": 5}]}, "edges.0"),
        ({"nodes": [{"name": "s", "kind": "subgraph", "graph": None}]}, "nodes.0.graph"),
    ],
)
def test_malformed_data_is_an_invalid_graph_at_its_place(data, place):
    with pytest.raises(InvalidGraph):
        PromptGraph.from_config(data)
    assert place in found(data)


#: one of each kind of value that a graph may hold
SAMPLE: dict[str, Any] = {
    "name": "g",
    "routing": "edges_only",
    "entry": "a",
    "finalizer": "z",
    "nodes": [
        {
            "name": "a", "tools": ["t"], "transitions": {"x": "z"}, "routes": ["z"], "output_schema": {},
            "guards": [{"check": "builtins:bool", "mode": "retry", "max_retries": 2}],
            "blocks": [{"block": {"text": "hi", "title": "t"}}], "flags": ["critical", ["b"]], "timeout": 3,
        },
        {"name": "p", "kind": "parallel", "nodes": [{"name": "c"}], "on_error": "collect"},
        {"name": "s", "kind": "subgraph", "graph": {"nodes": [{"name": "q"}], "edges": []}},
        {"name": "f", "kind": "fan_out", "node": {"name": "w"}, "items": [1], "max_items": 3},
        {"name": "l", "kind": "loop", "body": [{"name": "k"}], "until": "done", "max_loops": 3},
        {"name": "z", "kind": "function", "function": "builtins:str"},
    ],
    "edges": [
        {"from": "a", "to": "p", "when": "tool_call", "label": "l", "priority": 1},
        {"from": "p", "to": "z", "when": {"output": "k", "equals": 1}},
        {"from": "s", "to": "z", "when": {"confidence": 0.5}},
    ],
}  # fmt: skip
ODD: list[Any] = [None, -1, "os:nothing", [[None]], {1: 2}]


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = data.items() if isinstance(data, dict) else enumerate(data if isinstance(data, list) else ())
    for key, value in inner:
        yield from places(value, (*at, key))


def replaced(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    changed = copy(data)
    changed[at[0]] = replaced(data[at[0]], at[1:], value)
    return changed


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_whatever_stands_in_a_graph_its_faults_are_told(odd):
    """In every place; it never raises, and each fault leads to a place that is there."""
    for at in places(SAMPLE):
        data = replaced(SAMPLE, at, odd)
        tuple(references(data))
        for problem in find_problems(PromptGraph, data):
            reduce(getitem, problem.location, data)


def test_a_graph_without_nodes_is_one_fault():
    assert found({"nodes": []}) == {"": "The graph 'graph' has no nodes."}


def test_a_flag_that_is_a_tuple_comes_back_as_one():
    graph = PromptGraph(nodes=[PromptNode("p", flags={("tuple", 1)})])
    assert PromptGraph.from_config(graph.to_config()).get_node("p").flags == {("tuple", 1)}


def test_a_graph_that_contains_itself_cannot_be_written():
    graph = PromptGraph("g", nodes=[PromptNode("a")])
    graph.add_node(SubgraphNode("s", graph))
    with pytest.raises(InvalidGraph, match="contains itself"):
        graph.to_config()


def test_a_module_that_breaks_when_it_is_loaded_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "breaks_when_loaded.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    problems = found({"nodes": [{"name": "f", "kind": "function", "function": "breaks_when_loaded:f"}]})
    assert "ZeroDivisionError" in problems["nodes.0.function"]


def test_tools_and_roles_that_nodes_name_are_told_with_their_places():
    deep = {"nodes": [{"name": "t", "kind": "tool", "tool": "send"}]}
    data = {
        "nodes": [
            {"name": "a", "tools": ["look", {"python": "m:own"}], "model_override": "big"},
            {"name": "s", "kind": "subgraph", "graph": deep},
            {"name": "own", "kind": "tool", "tool": "mine", "tools": [{"python": "m:own"}]},
            7,
        ]
    }
    assert [tuple(mention) for mention in references(data)] == [
        ("tool", "look", ("nodes", 0, "tools", 0)),
        ("role", "big", ("nodes", 0, "model_override")),
        ("tool", "send", ("nodes", 1, "graph", "nodes", 0, "tool")),
    ]


def test_an_autonomous_node_of_python_may_leave_out_its_name():
    assert AutonomousNode([PromptNode("p", is_terminal=True)]).name == "autonomous"
