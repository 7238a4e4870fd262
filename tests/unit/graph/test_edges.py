"""Edges: when each condition holds, how it is said in words, and how many arguments it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.graph.transitions import (
    Edge,
    OnConfidence,
    OnError,
    OnGuardFail,
    OnNoToolCall,
    OnOutput,
    OnToolCall,
    as_test,
    describe_condition,
    field_of,
    in_evaluation_order,
)
from astromesh.types import ToolCall

CALL = ToolCall("1", "search", "{}")
PLAIN = NodeResult("n", "answer")
ASKS = NodeResult("n", tool_calls=(CALL,))
FAILED = NodeResult("n", error="broken")
GUARDED = NodeResult("n", guards_failed=("length: too long",))


@pytest.mark.parametrize(
    ("condition", "holds_for"),
    [
        (OnToolCall(), [ASKS]),
        (OnNoToolCall(), [PLAIN, GUARDED]),
        (OnError(), [FAILED]),
        (OnGuardFail(), [GUARDED]),
    ],
    ids=str,
)
def test_when_a_condition_holds(condition: Any, holds_for: list[NodeResult]) -> None:
    for result in (PLAIN, ASKS, FAILED, GUARDED):
        assert condition(result) is (result in holds_for)


@dataclass
class Record:
    state: str = "done"
    confidence: float = 0.9


class Model(BaseModel):
    state: str = "done"


class Other:
    state = "done"


@pytest.mark.parametrize(
    ("key", "value", "output", "holds"),
    [
        ("state", "done", {"state": "done"}, True),
        ("state", "done", {"state": "open"}, False),
        ("state", "done", {}, False),
        ("state", "done", Record(), True),
        ("state", "done", Model(), True),
        ("state", "done", Other(), False),
        ("state", "done", "state", False),
        ("missing", None, Record(), True),
        ("ok", True, {"ok": True}, True),
        ("ok", True, {"ok": 1}, False),
        ("ok", False, {"ok": 0}, False),
        ("n", 1, {"n": 1.0}, True),
        ("n", 1, {"n": 2}, False),
    ],
)
def test_an_output_has_a_value(key: str, value: Any, output: Any, holds: bool) -> None:
    assert OnOutput(key, value)(NodeResult(output=output)) is holds


def test_a_field_alone_is_asked_to_be_true() -> None:
    assert OnOutput("ok") == OnOutput("ok", True)
    assert field_of({"ok": 5}, "ok") == 5


@pytest.mark.parametrize(
    ("confidence", "holds"),
    [(0.75, True), (0.74, False), (1, True), (True, False), ("0.9", False), (None, False)],
)
def test_a_confidence_is_a_number_of_at_least_so_much(confidence: Any, holds: bool) -> None:
    assert OnConfidence(0.75)(NodeResult(output={"confidence": confidence})) is holds


def test_a_confidence_may_stand_in_a_record() -> None:
    assert OnConfidence(0.75)(NodeResult(output=Record()))


def when_rich(result: NodeResult) -> bool:
    return True


class Callable:
    def __call__(self, result: NodeResult) -> bool:
        return True


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (OnToolCall(), "tool call"),
        (OnNoToolCall(), "no tool call"),
        (OnError(), "error"),
        (OnGuardFail(), "guard failed"),
        (OnOutput("state", "done"), "state = done"),
        (OnConfidence(0.75), "confidence ≥ 0.75"),
        (OnConfidence(1.0), "confidence ≥ 1"),
        (when_rich, "when_rich"),
        (lambda result: True, "lambda"),
        (partial(when_rich), "partial"),
        (Callable(), "Callable"),
    ],
)
def test_a_condition_in_words(condition: Any, words: str) -> None:
    assert describe_condition(condition) == words


def test_an_edge_in_words() -> None:
    assert str(Edge("a", "b")) == "a → b"
    assert str(Edge("a", "b", label="when ready")) == "a → b (when ready)"


STATE = GraphState()


def test_a_condition_is_given_what_it_takes() -> None:
    assert as_test(lambda result: result.output, "n")(PLAIN, STATE) == "answer"
    assert as_test(lambda result, state: state, "n")(PLAIN, STATE) is STATE
    assert as_test(lambda *given: given, "n")(PLAIN, STATE) == (PLAIN, STATE)
    assert as_test(lambda result, state=None: state, "n")(PLAIN, STATE) is None


async def later(result: NodeResult) -> bool:
    return True


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (later, r"^a → b: a condition must not be async\.$"),
        (lambda: True, "^a → b: .* must take 1 to 2 positional arguments, not 0"),
        (lambda a, b, c: True, "^a → b: .* must take 1 to 2 positional arguments, not 3"),
    ],
)
def test_what_is_no_condition_is_refused(condition: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        as_test(condition, "a → b")


def test_edges_are_tried_by_priority_then_conditional_ones_first() -> None:
    edges = [Edge("n", "plain"), Edge("n", "if", when_rich), Edge("n", "late", when_rich, priority=-1),
             Edge("n", "early", priority=1), Edge("n", "if too", when_rich)]  # fmt: skip
    assert [edge.target for edge in in_evaluation_order(edges)] == ["early", "if", "if too", "plain", "late"]
