"""Commands: an update of the state and the next node, returned by nodes and by tools."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from astromesh.graph import Command, FunctionNode, PromptGraph, PromptGraphEngine, PromptNode, ToolNode, node
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall


class Order(BaseModel):
    total: int = 0
    log: Annotated[list[str], operator.add] = []


@node("first")
async def first(state: Any) -> Command:
    return Command({"total": 3}, goto="last")


@node("middle", inline=True)
def middle(state: Any) -> Command:
    return Command({"total": 4})


@node("last", inline=True)
def last(state: Any) -> str:
    return "done"


def graph_of(*nodes: FunctionNode, **keywords: Any) -> PromptGraph:
    graph = PromptGraph("g", nodes=nodes, **keywords).sequential(*(one.name for one in nodes))
    return graph.when("first", "last", lambda result: False)


async def test_nodes_of_an_untyped_graph_write_to_the_context_and_choose_the_next_node() -> None:
    """An async function, and an inline one that only updates."""
    result = await PromptGraphEngine(graph_of(first, middle, last)).ainvoke("q")
    assert result.ok, result.error
    assert result.report.nodes_visited == ["first", "last"]
    assert result.context["total"] == 3
    assert result.context["first_output"] == {"total": 3}
    result = await PromptGraphEngine(PromptGraph(nodes=[middle])).ainvoke("q")
    assert (result.context["total"], result.output) == (4, {"total": 4})


@pytest.mark.parametrize(
    ("goto", "why"),
    [
        ("nowhere", "'lost' may not go to 'nowhere', which is not one of its targets"),
        (["a"], "'lost': `goto` is the name of a node, not ['a']"),
    ],
)
@pytest.mark.parametrize("kind", [None, Order])
async def test_a_target_that_the_node_does_not_declare_is_its_error(kind: Any, goto: Any, why: str) -> None:
    @node("lost")
    async def lost(state: Any) -> Command:
        return Command({"total": 1}, goto=goto)

    result = await PromptGraphEngine(PromptGraph(nodes=[lost], state=kind)).ainvoke("q")
    assert why in result.error
    assert result.context.get("total", 0) == 0


def order(item: str) -> Command:
    """Orders an item.

    Args:
        item: its name
    """
    return Command({"total": 2, "log": [item]}, goto="last", result=f"{item} is ordered")


def note(item: str) -> Command:
    """Notes an item.

    Args:
        item: its name
    """
    return Command({"log": [item]})


@pytest.mark.parametrize("kind", [None, Order])
async def test_tools_update_the_state_and_leave_the_tool_loop(kind: Any) -> None:
    """The model reads `result`; with a `goto` it is not asked again, and several updates count in order."""
    shop = PromptNode("shop", tools=[order, note], routes=["last"])
    graph = PromptGraph("g", nodes=[shop, last], state=kind)
    calls = [ToolCall("1", "note", '{"item": "pear"}'), ToolCall("2", "order", '{"item": "tea"}')]
    model = ScriptedProvider(calls)
    result = await PromptGraphEngine(graph, model).ainvoke("Tea!")
    assert result.ok, result.error
    assert result.report.nodes_visited == ["shop", "last"]
    assert [m.content for m in result.messages if m.role == "tool"] == ['{"log":["pear"]}', "tea is ordered"]
    assert result.context["total"] == 2
    assert result.context["log"] == (["pear", "tea"] if kind else ["tea"])
    assert len(model.requests) == 1


async def test_a_command_without_target_stays_in_the_tool_loop() -> None:
    shop = PromptNode("shop", tools=[note])
    model = ScriptedProvider(ToolCall("1", "note", '{"item": "pear"}'), "Noted.")
    result = await PromptGraphEngine(PromptGraph("g", nodes=[shop], state=Order), model).ainvoke("Pear")
    assert (result.output, result.state.log) == ("Noted.", ["pear"])


async def test_an_update_of_a_tool_that_does_not_fit_fails_its_node() -> None:
    def wrong() -> Command:
        """Updates what is not there."""
        return Command({"totl": 1})

    tool = ToolNode("call", "wrong", {}, tools=[wrong])
    result = await PromptGraphEngine(PromptGraph("g", nodes=[tool], state=Order)).ainvoke("q")
    assert "Order has no field 'totl'. Did you mean `total`?" in result.error


async def test_a_tool_node_goes_where_its_tool_says() -> None:
    tool = ToolNode("call", "order", {"item": "tea"}, tools=[order])
    graph = PromptGraph("g", nodes=[tool, middle, last]).sequential("call", "middle")
    result = await PromptGraphEngine(graph).ainvoke("q")
    assert result.report.nodes_visited == ["call", "last"]
    assert result.context["call_output"] == "tea is ordered"
