"""Each rule of the transition by itself, on a crossing that is nothing but its record."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import pytest

from astromesh.graph import END, NodeFlag, NodeResult
from astromesh.graph.flags import BIT, mask
from astromesh.graph.records import TOOL_CALLS_PRESENT
from astromesh.graph.state import GraphState
from astromesh.graph.transitions import (
    END_TRANSITION,
    CompiledEdge,
    Fork,
    RoutedNode,
    Send,
    Transition,
    as_test,
    by_sends,
    by_the_model,
    condition_holds,
    decides_nothing,
    matching_transition,
    repeat_with_tools,
    route_in,
    sends_in,
    takes_up_error,
    unconditional_transition,
)
from astromesh.types import ToolCall

STATE = GraphState()
NOWHERE = Transition("", "")
EDGE, DEFAULT = Transition("edge", "edge"), Transition("default", "default")
CALLS = [ToolCall("c", "look")]


Crossing = partial(RoutedNode, "a")


def never(result: NodeResult, state: GraphState) -> bool:
    return False


def in_this_state(result: NodeResult, state: GraphState) -> bool:
    return state is STATE


@pytest.mark.parametrize(
    ("crossing", "way"),
    [
        (Crossing(), END_TRANSITION),
        (Crossing(default=DEFAULT), DEFAULT),
        (Crossing(edges=(CompiledEdge(None, EDGE),), default=DEFAULT), EDGE),
        (Crossing(edges=(CompiledEdge(never, EDGE),), default=DEFAULT), None),
        (Crossing(transitions={"word": "b"}, default=DEFAULT), None),
    ],
)
def test_the_straight_way_is_there_where_nothing_has_to_be_asked(
    crossing: RoutedNode, way: Transition | None
) -> None:
    assert unconditional_transition(crossing) == way


@pytest.mark.parametrize(
    ("result", "again"),
    [
        (NodeResult(tool_calls=CALLS, transition_reason=TOOL_CALLS_PRESENT), True),
        (NodeResult(tool_calls=CALLS), False),
        (NodeResult(transition_reason=TOOL_CALLS_PRESENT), False),
        (NodeResult(tool_calls=CALLS, transition_reason=TOOL_CALLS_PRESENT, error="no"), False),
    ],
)
def test_a_node_is_entered_again_only_for_tools_that_were_called(result: NodeResult, again: bool) -> None:
    assert repeat_with_tools(Crossing(), result, STATE) == (
        Transition("a", TOOL_CALLS_PRESENT) if again else None
    )


@pytest.mark.parametrize("stopped", [{"error": "no"}, {"stop_reason": "human_denied"}])
def test_a_node_that_failed_or_was_stopped_does_not_follow_its_model(stopped: dict[str, Any]) -> None:
    crossing = Crossing(routes={"b": "b"})
    assert by_the_model(crossing, NodeResult(output={"route": "b"}), STATE) == Transition("b", "route")
    assert by_the_model(crossing, NodeResult(output={"route": "b"}, **stopped), STATE) is None


@pytest.mark.parametrize(
    ("guarded", "way"),
    [
        (
            Crossing(edges=(CompiledEdge(in_this_state, Transition("gate", "edge: check")),)),
            Transition("gate", "edge: check"),
        ),
        (Crossing(edges=(CompiledEdge(in_this_state, Transition("c", "edge")),)), Transition("b", "goto")),
        (Crossing(edges=(CompiledEdge(never, Transition("gate", "edge")),)), Transition("b", "goto")),
        (Crossing(transitions={"done": "gate"}), Transition("gate", "transition: done")),
    ],
)
def test_what_the_model_says_skips_no_guard_that_the_node_would_come_to(
    guarded: RoutedNode, way: Transition
) -> None:
    """The next rule that answers counts; where that leads past the guards, the model is followed."""
    guarded.routes, guarded.guards = {"b": "b", "gate": "gate"}, frozenset({"gate"})
    guarded.transitions = dict(guarded.transitions)
    result = NodeResult(output={"goto": "b", "done": True})
    assert by_the_model(guarded, result, STATE) == way
    assert by_the_model(guarded, NodeResult(output={"goto": "gate"}), STATE) == Transition("gate", "goto")


@pytest.mark.parametrize(
    "output", [None, "route", {"route": 5}, {"route": ["b"]}, {"route": ""}, {"word": "b"}]
)
def test_only_words_in_a_field_say_where_to_go(output: Any) -> None:
    assert route_in(output) is None


def test_the_first_field_that_holds_a_word_is_the_one() -> None:
    assert route_in({"goto": "c", "_next": "b", "route": 1}) == ("_next", "b")


def test_a_failed_node_takes_the_error_key_or_none() -> None:
    failed = NodeResult(output="word", error="no")
    assert matching_transition({"error": "b", "word": "c"}, failed) == "error"
    assert matching_transition({"word": "c"}, failed) is None


def test_no_way_out_is_the_end() -> None:
    assert unconditional_transition(Crossing()) == Transition(END, "end")


def test_flags_are_bits_of_their_own_and_others_have_none() -> None:
    assert mask([]) == 0
    assert mask(["mine", NodeFlag.CRITICAL]) == BIT[NodeFlag.CRITICAL]
    assert mask(NodeFlag) == sum(BIT.values()) == 2 ** len(NodeFlag) - 1


@pytest.mark.parametrize(
    ("transition", "handled"),
    [
        (Transition("__error__", "default"), True),
        (Transition("b", "next_node"), True),
        (Transition("b", "transition: error"), True),
        (EDGE, True),
        (DEFAULT, False),
        (END_TRANSITION, False),
    ],
)
def test_only_a_transition_that_is_meant_for_failures_takes_one_up(
    transition: Transition, handled: bool
) -> None:
    node = Crossing(edges=(CompiledEdge(in_this_state, EDGE), CompiledEdge(None, DEFAULT)))
    assert takes_up_error(node, transition) is handled


def test_a_fork_shows_all_its_targets() -> None:
    assert str(Fork("a", ("b", "c"))) == "a → b, c (fork)"


@pytest.mark.parametrize(
    ("output", "transition"),
    [
        ([Send("b", 1), Send("c", 2)], Transition("b", "send")),
        ((Send("c"),), Transition("c", "send")),
        ([Send("b"), 2], None),
        ([], None),
        ({"node": "b"}, None),
    ],
)
def test_a_node_that_returns_sends_leads_to_their_targets(output: Any, transition: Transition | None) -> None:
    node = Crossing(declared=frozenset({"b", "c"}))
    assert by_sends(node, NodeResult(output=output), STATE) == transition
    assert by_sends(node, NodeResult(output=output, error="no"), STATE) is None


def test_a_node_that_sends_to_an_undeclared_node_fails() -> None:
    result = NodeResult(output=[Send("b"), Send("x"), Send("y")])
    assert by_sends(Crossing(declared=frozenset({"b"})), result, STATE) is None
    assert result.error == "'a' sends to 'x', which is not one of its targets or routes."


def test_a_condition_that_fails_does_not_hold_and_fails_the_node_once() -> None:
    def broken(result: NodeResult) -> bool:
        raise ValueError("no number")

    test, result = as_test(broken, "edge"), NodeResult(output="word")
    assert getattr(test, "__name__", "") == "broken"
    assert condition_holds(test, Transition("b", "edge"), result, STATE) is False
    assert result.error == "The condition of the edge to 'b' failed: ValueError: no number"
    assert isinstance(result.exception, ValueError)
    assert condition_holds(test, Transition("c", "edge"), result, STATE) is False
    assert "to 'b'" in result.error


def test_a_condition_does_not_hold_back_the_end_of_the_program() -> None:
    """Whoever starts the tests in the background of a script has them ignore Ctrl-C."""

    def ended(result: NodeResult) -> bool:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        condition_holds(as_test(ended, "edge"), Transition("b", "edge"), NodeResult(), STATE)


@pytest.mark.parametrize(
    ("output", "nothing"),
    [
        ([Send("b")], False),
        ([1, 2], True),
        ([], True),
        ({"word": "b"}, True),
        ({"goto": "b"}, False),
        (object(), False),
    ],
)
def test_an_output_without_a_route_and_without_sends_decides_nothing(output: Any, nothing: bool) -> None:
    assert decides_nothing(output, type(output)) is nothing


def test_sends_are_found_again_in_the_record_of_a_durable_run() -> None:
    record = [{"node": "b", "value": 1}, {"node": "c"}]
    assert sends_in(record, recorded=True) == (Send("b", 1), Send("c"))
    assert sends_in(record) == ()
    assert sends_in([*record, 2], recorded=True) == ()
    assert sends_in([Send("b", 1)], recorded=True) == (Send("b", 1),)
    assert sends_in([], recorded=True) == sends_in("bc", recorded=True) == ()
