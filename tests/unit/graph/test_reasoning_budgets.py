"""The budgets of a reasoning run: caps on a ledger that others use too, and overrides that may only lower."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from astromesh.graph.ledger import RunLedger
from astromesh.graph.reasoning.state import (
    KEY,
    NOTES,
    RESTORES,
    STRATEGIES,
    Budgets,
    Notes,
    ReasoningSettings,
    ReasoningState,
    narrow_caps,
    notes_of,
    rc_of,
)
from astromesh.graph.state import GraphState


def test_what_was_spent_before_does_not_count() -> None:
    ledger = RunLedger()
    ledger.spend("steps", 5)
    budgets = Budgets(ledger, {"steps": 2, "tool_calls": 1})
    assert ledger.caps == {"steps": 7, "tool_calls": 1}
    assert [budgets.try_spend("steps") for _ in range(3)] == [True, True, False]
    assert budgets.used() == {"steps": 2, "tool_calls": 0}
    assert (budgets.has_left("steps"), budgets.has_left("tool_calls")) == (False, True)


def test_a_tighter_cap_of_the_ledger_stays_and_a_looser_one_comes_back() -> None:
    ledger = RunLedger({"steps": 1, "tool_calls": 9})
    budgets = Budgets(ledger, {"steps": 4, "tool_calls": 2, "model_calls": 3})
    assert ledger.caps == {"steps": 1, "tool_calls": 2, "model_calls": 3}
    budgets.close()
    assert ledger.caps == {"steps": 1, "tool_calls": 9}
    budgets.close()
    assert ledger.caps == {"steps": 1, "tool_calls": 9}


def test_a_cap_of_a_surrounding_run_counts() -> None:
    outer = RunLedger({"steps": 1})
    budgets = Budgets(outer.child(), {"steps": 5})
    assert budgets.has_left("steps")
    assert budgets.try_spend("steps")
    assert not budgets.has_left("steps")


@pytest.mark.parametrize("key", ["tokens", "cost_usd", "model_calls"])
def test_tokens_and_cost_bound_model_calls_too(key: str) -> None:
    ledger = RunLedger({key: 2})
    budgets = Budgets(ledger, {"steps": 1})
    assert budgets.has_model_calls_left
    ledger.spend(key, 2)
    assert not budgets.has_model_calls_left


def test_tool_calls_do_not_bound_model_calls() -> None:
    ledger = RunLedger()
    budgets = Budgets(ledger, {"tool_calls": 0})
    assert budgets.has_model_calls_left


CAPS = {"steps": 6, "tool_calls": 4}


@pytest.mark.parametrize(
    ("overrides", "caps", "errors"),
    [
        ((), CAPS, []),
        ((None, None), CAPS, []),
        (({"steps": 2}, None), {"steps": 2, "tool_calls": 4}, []),
        ((None, {"steps": 2}), {"steps": 2, "tool_calls": 4}, []),
        (({"steps": 2}, {"steps": 3}), {"steps": 2, "tool_calls": 4}, []),
        (({"steps": 0},), {"steps": 0, "tool_calls": 4}, []),
        (({"steps": 6},), CAPS, []),
        (({"steps": 7, "tool_calls": 1},), {"steps": 6, "tool_calls": 1},
         ["The budget 'steps' may not be raised above 6."]),
        (({"steps": -1, "tool_calls": 1},), {"steps": 6, "tool_calls": 1},
         ["The budget 'steps' must be a whole number from 0; it is ignored."]),
        (({"steps": "2"},), CAPS, ["The budget 'steps' must be a whole number from 0; it is ignored."]),
        (({"steps": True},), CAPS, ["The budget 'steps' must be a whole number from 0; it is ignored."]),
        (({"x" * 50: 1, "steps": 1},), {"steps": 1, "tool_calls": 4},
         [f"There is no budget '{'x' * 40}'; it is ignored."]),
        (([1], {"steps": 1}), {"steps": 1, "tool_calls": 4},
         ["The budget must be an object of whole numbers; it is ignored."]),
    ],
)  # fmt: skip
def test_overrides_may_lower_a_budget(overrides: tuple[Any, ...], caps: Any, errors: list[str]) -> None:
    assert narrow_caps(CAPS, *overrides) == (caps, errors)
    assert CAPS == {"steps": 6, "tool_calls": 4}


# -- what a resumed run makes of its record ----------------------------------------------------------------


def test_budgets_that_a_node_has_opened_are_open_again_with_what_was_spent() -> None:
    """What the recorded calls have charged is not charged twice."""
    ledger = RunLedger({"steps": 3})
    ledger.spend("model_calls")
    record = {"caps": {"steps": 5, "model_calls": 4}, "used": {"steps": 2, "model_calls": 1}, "is_open": True}
    budgets = Budgets.restore(record, None, ledger)
    assert ledger.used == {"steps": 2, "model_calls": 2}
    assert ledger.caps == {"steps": 3, "model_calls": 5}
    assert budgets.to_json() == record
    ledger.spend("steps")  # by a call that the record has
    for steps in (3, 4):  # the fourth was spent by the node itself
        later = {**record, "used": {"steps": steps, "model_calls": 1}}
        assert Budgets.restore(later, budgets, ledger) is budgets
        assert budgets.to_json() == later
    assert ledger.used == {"steps": 4, "model_calls": 2}
    assert ledger.caps == {"steps": 3, "model_calls": 5}


def test_budgets_that_a_node_has_closed_are_closed_again() -> None:
    ledger = RunLedger({"steps": 3})
    record = {"caps": {"steps": 2}, "used": {"steps": 0}, "is_open": True}
    budgets = Budgets.restore(record, None, ledger)
    closed = Budgets.restore({**record, "used": {"steps": 1}, "is_open": False}, budgets, ledger)
    assert (closed.is_open, ledger.caps, ledger.used) == (False, {"steps": 3}, {"steps": 1})
    opened = Budgets.restore(record, closed, ledger)  # by a second controller of the graph
    assert (opened.is_open, ledger.caps, opened.used()) == (True, {"steps": 3}, {"steps": 0})
    assert opened is not closed


def test_the_fields_and_notes_of_a_run_come_back_from_their_json() -> None:
    state = GraphState()
    fields = ReasoningState(input="Why?", errors=["late"], confidence=0.5, next_step={"kind": "reason"})
    assert RESTORES[KEY](to_builtins(fields), state) == fields
    record = {
        "budgets": {"caps": {"steps": 5}, "used": {"steps": 2}, "is_open": True},
        "gains": [0.5], "strategy_steps": 2, "refusal": "budget", "done": True, "mismatch": True,
        "needs_evaluation": False, "selection_failed": True, "is_fallback": True, "failures": 3,
        "evidence": [["a source", "a text"]],
    }  # fmt: skip
    notes = RESTORES[NOTES](record, state)
    assert isinstance(notes, Notes)
    assert (notes.gains, notes.strategy_steps, notes.refusal, notes.failures) == ([0.5], 2, "budget", 3)
    assert (notes.done, notes.mismatch, notes.needs_evaluation, notes.is_fallback) == (
        True,
        True,
        False,
        True,
    )
    assert notes.evidence == [("a source", "a text")]
    assert state.ledger.used == {"steps": 2}
    state.context[NOTES] = notes
    again = RESTORES[NOTES](record, state)
    assert again.budgets is notes.budgets
    assert state.ledger.used == {"steps": 2}


def test_settings_are_the_same_after_a_trip_through_their_json() -> None:
    settings = ReasoningSettings.of({"threshold": 0.5, "tool_policy": {"on_disallowed": "block"}})
    assert ReasoningSettings.of(settings) is settings
    assert ReasoningSettings.of(settings.to_json()) == settings
    assert ReasoningSettings.of(None) == ReasoningSettings()
    assert ReasoningSettings(allowed_tools=("a", "b")).to_json()["allowed_tools"] == ["a", "b"]


@pytest.mark.parametrize(
    ("budgets", "most"),
    [
        ({}, 8 + 3 * (6 + 4 + 1 + 1) + 2),
        ({"steps": 0, "tool_calls": 0, "strategy_switches": 0}, 8 + 3),
        ({"steps": 7, "tool_calls": 5, "strategy_switches": 3}, 8 + 3 * 16 + 6),
    ],
)
def test_a_run_executes_no_more_nodes_than_its_budgets_ask_for(budgets: dict[str, int], most: int) -> None:
    """Each step, tool call and switch is a loop of three nodes; a switch costs two more."""
    assert ReasoningSettings.of({"budgets": budgets}).max_iterations == most


def test_an_error_is_noted_once() -> None:
    fields = ReasoningState()
    for error in ("late", "", "lost", "late"):
        fields.note_error(error)
    assert fields.errors == ["late", "lost"]


def test_a_choice_of_a_strategy_is_recorded_and_before_it_the_most_cautious_one_counts() -> None:
    fields = ReasoningState(task_profile={"complexity": "simple"})
    assert (fields.strategy, fields.is_simple) == (STRATEGIES["decompose"], True)
    fields.choose("direct", "short")
    fields.choose("react_tool_loop", "stalled")
    assert (fields.strategy, ReasoningState().is_simple) == (STRATEGIES["react_tool_loop"], False)
    assert fields.strategy_history == [
        {"strategy": "direct", "reason": "short"},
        {"strategy": "react_tool_loop", "reason": "stalled"},
    ]


def test_nodes_find_the_fields_and_the_notes_of_their_run() -> None:
    fields, notes = ReasoningState(), Notes(Budgets(RunLedger(), {}))
    state = GraphState(context={KEY: fields, NOTES: notes})
    assert (rc_of(state), notes_of(state)) == (fields, notes)
