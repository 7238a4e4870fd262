"""The budgets of a reasoning run: caps on a ledger that others use too, and overrides that may only lower."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.graph.ledger import RunLedger
from astromesh.graph.reasoning.state import Budgets, narrow_caps


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
