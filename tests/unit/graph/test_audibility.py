"""Whose words are streamed: only the answer's, and nothing that a guard or a human may still refuse."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.graph import (
    AutonomousNode,
    BaseNode,
    GraphState,
    GuardNode,
    HumanNode,
    LoopNode,
    NodeConfig,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RetryNode,
    SubgraphNode,
    TransformNode,
    node,
    prebuilt,
)
from astromesh.testing import RecordingTool, ScriptedProvider
from astromesh.types import ToolCall


def refuses(output: Any) -> bool:
    return False


def accepts(output: Any) -> bool:
    return True


async def heard(graph: PromptGraph, *said: Any, **engine: Any) -> tuple[list[tuple[str, str]], str]:
    """What listeners hear of a run, as text by role in order, and how the run ended."""
    model = ScriptedProvider(*said)
    deltas: list[tuple[str, str]] = []
    last = ""
    async for event in PromptGraphEngine(graph, model, **engine).astream_events("q"):
        last = event.type
        if event.type == "model.delta":
            role, text = event.data["role"], event.data["content"]
            before = deltas.pop()[1] if deltas and deltas[-1][0] == role else ""
            deltas.append((role, before + text))
    return deltas, last


def line(*nodes: BaseNode) -> PromptGraph:
    return PromptGraph("g", nodes=nodes).sequential(*(one.name for one in nodes))


def around(kind: str, one: BaseNode) -> BaseNode:
    return {
        "alone": lambda: one,
        "subgraph": lambda: SubgraphNode("s", line(one)),
        "parallel": lambda: ParallelNode("s", [one]),
        "loop": lambda: LoopNode("s", one, until=lambda result: True),
        "retry": lambda: RetryNode("s", one, max_attempts=1),
        "deep": lambda: SubgraphNode("s", line(RetryNode("r", SubgraphNode("t", line(one)), max_attempts=1))),
    }[kind]()


KINDS = ["alone", "subgraph", "parallel", "loop", "retry", "deep"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["", "writer"])
async def test_what_a_guard_behind_refuses_nobody_hears(kind: str, role: str) -> None:
    """Neither as the answer nor in a role of the node's own, wherever the guard stands."""
    guard = GuardNode("guard", guards=[refuses])
    graph = line(PromptNode("p", role=role), around(kind, guard))
    assert await heard(graph, "SECRET words") == ([], "run.failed")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_guard_inside_refuses_nobody_hears(kind: str) -> None:
    graph = line(around(kind, PromptNode("p", guards=[refuses])))
    assert await heard(graph, "SECRET words") == ([], "run.failed")


@pytest.mark.parametrize("kind", ["subgraph", "loop"])
async def test_a_guard_beside_a_child_is_a_guard_of_it(kind: str) -> None:
    draft, guard = PromptNode("p"), GuardNode("guard", guards=[refuses])
    whole: BaseNode = SubgraphNode("s", line(draft, guard))
    if kind == "loop":
        whole = LoopNode("s", [draft, guard], until=lambda result: True)
    assert await heard(line(whole), "SECRET words") == ([], "run.failed")


async def test_a_guard_of_what_runs_a_node_is_a_guard_of_it() -> None:
    inner = SubgraphNode("s", line(PromptNode("p")), guards=[refuses])
    assert await heard(line(inner), "SECRET words") == ([], "run.failed")


async def test_a_draft_is_not_heard_before_a_person_approved_it() -> None:
    """Nor afterwards, where the person denied."""
    graph = line(PromptNode("p"), HumanNode("review"))
    assert await heard(graph, "a draft", human_handler=lambda request: "deny") == ([], "run.failed")
    approved, last = await heard(graph, "a draft", human_handler=lambda request: True)
    assert (approved, last) == ([("assistant", "a draft")], "run.completed")


async def test_only_the_node_that_answers_speaks_as_the_assistant() -> None:
    """The others' words come under their names: the assistant's text, joined, is the answer."""
    graph = line(PromptNode("one"), PromptNode("two"), PromptNode("last"))
    seen, _ = await heard(graph, "ONE", "TWO", "FINAL")
    assert seen == [("one", "ONE"), ("two", "TWO"), ("assistant", "FINAL")]


async def test_an_answer_that_was_held_back_is_let_out_once_it_is_sure() -> None:
    graph = line(PromptNode("p"), GuardNode("guard", guards=[accepts]))
    assert await heard(graph, "fine words") == ([("assistant", "fine words")], "run.completed")


async def test_an_answer_that_a_later_node_makes_is_let_out_once() -> None:
    shout = TransformNode("shout", lambda value: str(value).upper())
    seen, _ = await heard(line(PromptNode("p"), shout), "hello")
    assert seen == [("p", "hello"), ("assistant", "HELLO")]


@pytest.mark.parametrize("kind", ["alone", "subgraph"])
async def test_a_node_that_leads_straight_to_the_end_streams_piece_by_piece(kind: str) -> None:
    model = ScriptedProvider("one two three")
    engine = PromptGraphEngine(line(around(kind, PromptNode("p"))), model)
    pieces = [e.data["content"] async for e in engine.astream_events("q") if e.type == "model.delta"]
    assert pieces == ["one ", "two ", "three"]


async def test_react_streams_piece_by_piece_also_behind_its_tools() -> None:
    look = RecordingTool("look", "seen")
    model = ScriptedProvider(ToolCall("1", "look", "{}"), "one two")
    engine = PromptGraphEngine(prebuilt.react(), model, tools=[look])
    pieces = [e.data["content"] async for e in engine.astream_events("q") if e.type == "model.delta"]
    assert pieces == ["one ", "two"]


async def test_edges_into_the_tools_do_not_keep_an_answer_back() -> None:
    @node("tools")
    def tools(state: Any) -> None:
        return None

    asks = PromptNode("p", tools=[RecordingTool("look", "seen")], tool_loop=False)
    graph = PromptGraph("g", nodes=[asks, tools]).on_tool_call("p", "tools").always("tools", "p")
    engine = PromptGraphEngine(graph, ScriptedProvider("one two"))
    pieces = [e.data["content"] async for e in engine.astream_events("q") if e.type == "model.delta"]
    assert pieces == ["one ", "two"]


@pytest.mark.parametrize("how", ["edge", "transition", "flag"])
async def test_an_answer_that_may_fail_and_be_made_anew_comes_whole(how: str) -> None:
    """What a failed try had said would stand before the answer."""
    asks = PromptNode(
        "p",
        flags={NodeFlag.RETRYABLE} if how == "flag" else (),
        transitions={"error": "sorry"} if how == "transition" else {},
    )
    graph = PromptGraph("g", nodes=[asks, PromptNode("sorry")] if how != "flag" else [asks])
    if how == "edge":
        graph.on_error("p", "sorry")
    engine = PromptGraphEngine(graph, ScriptedProvider("one two"))
    pieces = [e.data["content"] async for e in engine.astream_events("q") if e.type == "model.delta"]
    assert pieces == ["one two"]


async def test_words_that_a_repeating_node_may_throw_away_are_no_answer() -> None:
    rounds = LoopNode("l", PromptNode("p"), until=lambda result: result.output == "good")
    seen, _ = await heard(line(rounds), "bad", "good")
    assert seen == [("p", "badgood"), ("assistant", "good")]


async def test_of_a_pool_only_its_terminal_node_answers_and_none_where_it_holds_a_guard() -> None:
    def pool(*more: BaseNode) -> PromptGraph:
        return line(AutonomousNode("a", [PromptNode("x"), PromptNode("y", is_terminal=True), *more]))

    said = ('{"next_node": "x"}', "draft", '{"next_node": "y"}', "answer")
    seen, _ = await heard(pool(), *said)
    assert [one for one in seen if one[0] != "router"] == [("x", "draft"), ("assistant", "answer")]
    seen, _ = await heard(pool(GuardNode("guard", guards=[refuses])), *said)
    assert [one for one in seen if one[0] != "router"] == [("assistant", "answer")]


async def test_a_graph_that_is_a_pool_hides_drafts_as_a_pool_does_where_it_holds_a_guard() -> None:
    said = ('{"next_node": "x"}', "draft", '{"next_node": "y"}', "answer")
    pool: list[BaseNode] = [PromptNode("x"), PromptNode("y", is_terminal=True)]
    seen, _ = await heard(PromptGraph.from_pool(pool), *said)
    assert [one for one in seen if one[0] != "router"] == [("x", "draft"), ("assistant", "answer")]
    pool.append(GuardNode("guard", guards=[refuses]))
    seen, _ = await heard(PromptGraph.from_pool(pool), *said)
    assert [one for one in seen if one[0] != "router"] == [("assistant", "answer")]


async def test_a_guard_that_stands_further_on_is_a_guard_too() -> None:
    same = TransformNode("same", lambda value: value)
    graph = line(PromptNode("p"), same, GuardNode("guard", guards=[refuses]))
    assert await heard(graph, "SECRET words") == ([], "run.failed")


async def test_a_node_in_two_places_is_heard_as_where_less_of_it_is() -> None:
    shared = PromptNode("p")
    graph = line(
        SubgraphNode("draft", line(shared)),
        GuardNode("guard", guards=[accepts]),
        SubgraphNode("answer", line(shared)),
    )
    model = ScriptedProvider("a draft", "one two")
    events = PromptGraphEngine(graph, model).astream_events("q")
    told = [(e.data["role"], e.data["content"]) async for e in events if e.type == "model.delta"]
    assert told == [("assistant", "one two")]


class Undeclared(BaseNode):
    """Runs a node that its `children` do not name."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        return (await config.run(PromptNode("p", role="writer"), state)).passed_on(self.name)


@pytest.mark.parametrize(("guard", "seen"), [(refuses, []), (None, [("writer", "words")])])
async def test_a_node_that_nobody_has_declared_is_hidden_where_a_guard_follows(
    guard: Any, seen: list[tuple[str, str]]
) -> None:
    after = GuardNode("guard", guards=[guard]) if guard else TransformNode("after", lambda value: "")
    assert (await heard(line(Undeclared("u"), after), "words"))[0] == seen
