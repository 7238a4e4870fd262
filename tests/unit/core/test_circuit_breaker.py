"""The circuit breaker: a table of states whose rules hold for every history of calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from astromesh.core.circuit_breaker import CLOSED, BreakerRules, Circuit, admits, enter, leave

RULES = BreakerRules(3, 60.0)
OUTCOMES = ("success", "failure", "rejected", "throttled", "abandoned")
circuits = st.builds(
    Circuit, st.sampled_from(["closed", "open", "half_open"]), st.integers(0, 5), st.floats(0, 200)
)


def after(circuit: Circuit, outcome, *, probe=False, now=10.0, wait=0.0) -> Circuit:
    return leave(circuit, outcome, probe=probe, now=now, rules=RULES, wait=wait)


def test_three_failures_in_a_row_open_it_for_sixty_seconds():
    circuit = CLOSED
    for _ in range(2):
        circuit = after(circuit, "failure")
        assert admits(circuit, 10.0)
    circuit = after(circuit, "failure")
    assert not admits(circuit, 69.9)
    assert admits(circuit, 70.0)


def test_a_success_in_between_starts_the_count_anew():
    circuit = after(after(after(CLOSED, "failure"), "failure"), "success")
    assert circuit == CLOSED


@given(st.lists(st.sampled_from(["rejected", "abandoned"])))
def test_what_the_caller_caused_never_opens_it(outcomes):
    circuit = CLOSED
    for outcome in outcomes:
        circuit = after(circuit, outcome)
    assert circuit == CLOSED


@given(circuits, st.floats(0, 500), st.floats(0, 100))
def test_the_time_a_throttled_provider_asks_for_is_a_floor(circuit, wait, now):
    held = after(circuit, "throttled", probe=True, now=now, wait=wait)
    assert not admits(held, now + wait - 0.001) or wait < 0.001
    assert held.until >= circuit.until


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("success", "closed"),
        ("rejected", "closed"),
        ("failure", "open"),
        ("throttled", "open"),
        ("abandoned", "open"),
    ],
)
def test_the_probe_decides(outcome, state):
    assert after(Circuit("half_open", 3, 5.0), outcome, probe=True).state == state


def test_an_abandoned_probe_lets_the_next_call_probe_at_once():
    circuit = after(Circuit("half_open", 3, 5.0), "abandoned", probe=True, now=10.0)
    assert admits(circuit, 10.0)


@given(circuits, st.sampled_from(OUTCOMES), st.floats(0, 100))
def test_every_state_knows_every_outcome_and_others_never_decide_for_a_probe(circuit, outcome, now):
    after(circuit, outcome, probe=True, now=now)
    if circuit.state == "half_open":
        assert after(circuit, outcome, probe=False, now=now) == circuit


@pytest.mark.parametrize(
    ("before", "outcome", "after_it"),
    [
        (CLOSED, "failure", Circuit("closed", 1)),
        (Circuit("closed", 2), "failure", Circuit("open", 3, 70.0)),
        (CLOSED, "throttled", Circuit("open", 0, 30.0)),
        (Circuit("open", 3, 50.0), "throttled", Circuit("open", 3, 50.0)),
        (Circuit("open", 3, 50.0), "failure", Circuit("open", 3, 50.0)),
        (Circuit("half_open", 3, 5.0), "failure", Circuit("open", 4, 70.0)),
        (Circuit("half_open", 3, 5.0), "throttled", Circuit("open", 3, 30.0)),
        (Circuit("half_open", 3, 5.0), "abandoned", Circuit("open", 3, 10.0)),
        (Circuit("half_open", 3, 5.0), "rejected", CLOSED),
    ],
)
def test_what_health_shows_of_a_circuit_is_exact(before, outcome, after_it):
    """Failures in a row and the time of the next probe, at second 10; a throttled provider asks for 20."""
    assert after(before, outcome, probe=True, wait=20.0) == after_it


def test_a_throttled_provider_that_names_no_time_is_held_for_none():
    assert leave(CLOSED, "throttled", probe=False, now=10.0, rules=RULES) == Circuit("open", 0, 10.0)


def test_a_call_makes_an_open_circuit_half_open_and_leaves_a_closed_one():
    assert enter(Circuit("open", 3, 5.0)) == Circuit("half_open", 3, 5.0)
    assert enter(Circuit("closed", 2)) == Circuit("closed", 2)


class Breaker(RuleBasedStateMachine):
    """Calls set out, overlap and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit, self.now = CLOSED, 0.0
        self.out: list[bool] = []

    @rule(seconds=st.floats(0, 100))
    def time_goes_by(self, seconds):
        self.now += seconds

    @rule()
    def a_call_wants_to_go(self):
        if admits(self.circuit, self.now):
            self.circuit = enter(self.circuit)
            self.out.append(self.circuit.state == "half_open")

    @precondition(lambda self: self.out)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), wait=st.floats(0, 50))
    def a_call_ends(self, data, outcome, wait):
        probe = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.circuit = leave(self.circuit, outcome, probe=probe, now=self.now, rules=RULES, wait=wait)

    @invariant()
    def at_most_one_probe_is_out_and_only_while_half_open(self):
        assert sum(self.out) == (self.circuit.state == "half_open")

    @invariant()
    def an_open_circuit_opens_again_some_day(self):
        assert self.circuit.state != "open" or admits(self.circuit, self.circuit.until)

    @invariant()
    def a_closed_circuit_is_below_its_threshold(self):
        assert self.circuit.state != "closed" or self.circuit.failures < RULES.failure_threshold


TestBreaker = Breaker.TestCase
