"""What becomes of the writes of nodes that run concurrently."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import pytest

from astromesh.errors import ConflictingWrites
from astromesh.graph import (
    BaseNode,
    FanOutNode,
    FunctionNode,
    GuardNode,
    NodeFlag,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    SubgraphNode,
    node,
)


def writes(name: str, turns: int = 0, **values: Any) -> FunctionNode:
    """A node that writes values to the context after some turns of the event loop."""

    async def body(state):
        for _ in range(turns):
            await asyncio.sleep(0)
        state.context.update(values)

    return FunctionNode(name, body)


async def run(work: BaseNode, reducers: Any = None, context: Any = None):
    graph = PromptGraph("g", nodes=[work], reducers=reducers or {})
    return await PromptGraphEngine(graph).ainvoke("q", context=context)


async def test_two_different_values_under_one_key_are_an_error_that_names_both() -> None:
    """Not the last one wins: the nodes race, so that no order is right."""
    result = await run(
        ParallelNode("p", [writes("a", 2, draft=1), writes("b", other=1), writes("c", draft=2)])
    )
    assert not result.ok
    assert "'a' and 'c' ran at once and wrote different values under 'draft'" in result.error
    assert "reducers={'draft': FUNCTION}" in result.error
    cause = result.report.errors[-1].exception
    assert isinstance(cause, ConflictingWrites)
    assert (cause.key, cause.nodes) == ("draft", ("a", "c"))
    assert not {"draft", "other"} & result.context.keys()


async def test_output_keys_are_writes_too() -> None:
    """Two nodes with one output key need a reducer."""
    children = [
        FunctionNode("a", lambda s: ["a"], output_key="k"),
        FunctionNode("b", lambda s: ["b"], output_key="k"),
    ]
    assert "'a' and 'b'" in (await run(ParallelNode("p", children))).error
    assert (await run(ParallelNode("p", children), {"k": operator.add})).context["k"] == ["a", "b"]


async def test_equal_values_are_no_conflict() -> None:
    """Nor are values of different keys."""
    result = await run(ParallelNode("p", [writes("a", draft=[1], x=1), writes("b", draft=[1], y=2)]))
    assert result.ok
    assert (result.context["draft"], result.context["x"], result.context["y"]) == ([1], 1, 2)


async def test_values_that_cannot_be_compared_are_different() -> None:
    """A comparison that raises, like that of arrays, ends in the error about the key."""

    class Array:
        def __eq__(self, other):
            raise ValueError("no truth value")

        __hash__ = None  # type: ignore[assignment]

    result = await run(ParallelNode("p", [writes("a", k=Array()), writes("b", k=Array())]))
    assert "wrote different values under 'k'" in result.error
    assert not (await run(ParallelNode("p", [writes("a", k=1), writes("b", k=True)]))).ok


async def test_a_reducer_joins_in_the_order_of_the_nodes_whatever_ended_first() -> None:
    """It begins with the value before them, if there is one."""
    p = ParallelNode("p", [writes("a", 5, log=["a"]), writes("b", log=["b"]), writes("c", 2, log=["c"])])
    assert (await run(p, {"log": operator.add})).context["log"] == ["a", "b", "c"]
    result = await run(p, {"log": operator.add}, {"log": ["before"]})
    assert result.context["log"] == ["before", "a", "b", "c"]
    alone = await run(ParallelNode("p", [writes("a", n=7)]), {"n": max}, {"n": 9})
    assert alone.context["n"] == 9


async def test_a_reducer_that_fails_fails_the_node() -> None:
    """And nothing of the concurrent nodes is left in the context."""
    p = ParallelNode("p", [writes("a", n=1, x=1), writes("b", n="text")])
    result = await run(p, {"n": operator.add})
    assert "The reducer of 'n' failed: TypeError" in result.error
    assert not {"n", "x"} & result.context.keys()


async def test_items_keep_their_outputs_and_reduce_what_they_write() -> None:
    """Only the list of outputs reaches the context, and what the worker writes under a key with a reducer."""

    async def work(state):
        state.context["seen"] = {state.context["item"]}
        return state.context["item"] * 2

    worker = FunctionNode("w", work, output_key="double")
    result = await run(FanOutNode("f", worker, [1, 2, 3], output_key="all"), {"seen": operator.or_})
    assert result.output == [2, 4, 6]
    assert result.context == {"all": [2, 4, 6], "f_output": [2, 4, 6], "seen": {1, 2, 3}}
    conflict = await run(FanOutNode("f", worker, [1, 2, 3]))
    assert "'w[0]' and 'w[1]'" in conflict.error


async def test_items_may_be_whole_graphs() -> None:
    """The nodes in an item write their outputs too. They are equal in name and stay in the item."""
    inner = PromptGraph("inner", nodes=[_item("x", output_key="k"), _item("y")]).always("x", "y")
    result = await run(FanOutNode("f", SubgraphNode("s", inner), [1, 2]))
    assert result.output == [1, 2]
    assert result.context == {"f_output": [1, 2]}


def _item(name: str, **keywords: Any) -> FunctionNode:
    return FunctionNode(name, lambda s: s.context["item"], **keywords)


async def test_nested_nodes_of_one_name_do_not_conflict() -> None:
    """Two copies of one graph at once. Where their parts differ, `NAME_output` stays inside."""

    def part(value: int) -> PromptGraph:
        guard = GuardNode("same", guards=[lambda output: True])
        return PromptGraph("g", nodes=[writes("w"), FunctionNode("say", lambda s: value), guard]).sequential(
            "w", "say", "same"
        )

    result = await run(ParallelNode("p", [SubgraphNode("a", part(1)), SubgraphNode("b", part(2))]))
    assert result.output == {"a": 1, "b": 2}
    assert (result.context["a_output"], result.context["b_output"]) == (1, 2)
    assert "say_output" not in result.context


async def test_nested_graphs_inherit_reducers_and_may_have_their_own() -> None:
    """The graph that is nearest to the concurrent nodes decides."""
    p = ParallelNode("p", [writes("a", log=["a"], n=1), writes("b", log=["b"], n=2)])
    inner = PromptGraph("inner", nodes=[p], reducers={"n": max})
    outer = {"log": operator.add, "n": operator.add}
    result = await run(SubgraphNode("s", inner), outer)
    assert (result.context["log"], result.context["n"]) == (["a", "b"], 2)


async def test_cached_results_of_concurrent_nodes_are_all_kept() -> None:
    """The engine's own values are united, never a conflict."""
    calls: list[int] = []

    @node("w", flags={NodeFlag.CACHEABLE}, input_keys=["item"])
    async def worker(state):
        calls.append(state.context["item"])
        return state.context["item"]

    graph = PromptGraph(nodes=[FanOutNode("f", worker, [1, 2]), FanOutNode("g", worker, [1, 2])])
    result = await PromptGraphEngine(graph.always("f", "g")).ainvoke("q")
    assert (result.context["f_output"], result.context["g_output"]) == ([1, 2], [1, 2])


def test_reducers_are_checked_when_the_graph_is_made() -> None:
    """Keys and functions."""
    for wrong, why in (
        ({"k": "add"}, "must be a function"),
        ({"k": lambda value: value}, r"must take \(value, written\)"),
        ({"": max}, "a key of reducers"),
        ({"_node_cache": max}, "a key of reducers"),
        ([max], "must be a mapping"),
    ):
        with pytest.raises((TypeError, ValueError), match=why):
            PromptGraph(reducers=wrong)  # type: ignore[arg-type]


def join_texts(value: str, written: str) -> str:
    return f"{value}, {written}"


def test_reducers_are_written_and_read_by_name() -> None:
    """As every other Python object of a graph."""
    graph = PromptGraph("g", nodes=[writes("a")], reducers={"log": join_texts, "n": max})
    objects = {"a": graph.get_node("a").function}  # type: ignore[attr-defined]
    data = graph.to_config(objects=objects)
    assert data["reducers"] == {"log": f"{__name__}:join_texts", "n": "builtins:max"}
    assert PromptGraph.from_config(data, objects=objects).reducers == {"log": join_texts, "n": max}


def counts(name: str, *, waits: bool) -> FunctionNode:
    """A node that adds one to a number inside a value, with a pause between reading and writing."""

    async def slowly(state):
        n = state.context["d"]["n"]
        await asyncio.sleep(0)
        state.context["d"]["n"] = n + 1

    def at_once(state):
        state.context["d"]["n"] += 1

    return FunctionNode(name, slowly if waits else at_once)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("forks", [True, False])
async def test_values_inside_values_are_private_until_the_merge(waits: bool, forks: bool) -> None:
    """A change inside of a dict is a write of its key, of `async` children as of plain ones."""
    nodes = [counts("a", waits=waits), counts("b", waits=waits), writes("c", other=1)]
    before = {"d": {"n": 0, "deep": [{"x": 1}]}}

    def made(reducers: Any, children: Any) -> PromptGraph:
        if not forks:
            return PromptGraph("g", nodes=[ParallelNode("p", children)], reducers=reducers)
        graph = PromptGraph("g", nodes=[FunctionNode("p", lambda s: None), *children], reducers=reducers)
        return graph.fork("p", *(one.name for one in children))

    def added(one: Any, other: Any) -> Any:
        return {**one, "n": one["n"] + other["n"]}

    summed = await PromptGraphEngine(made({"d": added}, nodes)).ainvoke("q", context=before)
    assert (summed.context["d"]["n"], summed.context["other"]) == (2, 1)
    alone = await PromptGraphEngine(made({}, nodes[1:])).ainvoke("q", context=before)
    assert alone.context["d"] == {"n": 1, "deep": [{"x": 1}]}

    async def other_value(state):
        await asyncio.sleep(0)
        state.context["d"]["deep"][0]["x"] = 2

    clash = await PromptGraphEngine(made({}, [nodes[0], FunctionNode("x", other_value)])).ainvoke(
        "q", context=before
    )
    assert "'a' and 'x' ran at once and wrote different values under 'd'" in clash.error


async def test_a_deleted_key_is_deleted_unless_another_node_has_written_it() -> None:
    async def deletes(state):
        del state.context["k"]

    def deleting(name: str) -> FunctionNode:
        return FunctionNode(name, deletes)

    both = await run(ParallelNode("p", [deleting("a"), deleting("b"), writes("c", x=1)]), None, {"k": 0})
    assert both.ok
    assert ("k" in both.context, both.context["x"]) == (False, 1)
    clash = await run(ParallelNode("p", [deleting("a"), writes("b", k=1)]), None, {"k": 0})
    assert "'a' and 'b'" in clash.error
    work = ParallelNode("p", [deleting("a"), writes("b", k=1)])
    assert (await run(work, {"k": operator.add}, {"k": 5})).context["k"] == 6
    graph = PromptGraph("g", nodes=[writes("begin", k=0), deleting("a"), writes("b", x=1), writes("end")])
    graph.fork("begin", "a", "b").add_edge("a", "end").add_edge("b", "end")
    assert "k" not in (await PromptGraphEngine(graph).ainvoke("q")).context


@pytest.mark.parametrize("items", [None, lambda state: state.context["d"]["items"]])
async def test_items_share_the_list_that_they_are_from(items: Any) -> None:
    """A copy of it for each item would make a fan-out over twice as many take four times as long."""
    lists, others = [], []

    async def work(state):
        lists.append(state.context["d"]["items"])
        others.append(state.context["d"]["other"])

    node = FanOutNode("f", FunctionNode("w", work), items, input_keys=[] if items else ["xs"])
    values = [{"n": n} for n in range(3)]
    context = {"xs": values, "d": {"items": values, "other": []}}
    assert (await run(node, None, context)).ok
    assert len({id(one) for one in lists}) == 1
    assert len({id(one) for one in others}) == 3
