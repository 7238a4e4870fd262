"""The circuit breaker: a table of states whose rules hold for every history of calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from astromesh.core.circuit_breaker import (
    ALL_AT_ONCE,
    CLOSED,
    FIRST_AT_ONCE,
    BreakerRules,
    Circuit,
    Entry,
    admits,
    enter,
    leave,
)

RULES = BreakerRules(3, 60.0)
OUTCOMES = ("success", "failure", "repeated", "rejected", "throttled", "abandoned")
circuits = st.builds(
    Circuit, st.sampled_from(["closed", "open", "half_open"]), st.integers(0, 5), st.floats(0, 200)
)


def after(circuit: Circuit, outcome, *, entry="free", now=10.0, wait=0.0) -> Circuit:
    return leave(circuit, outcome, entry, now=now, rules=RULES, wait=wait)


def entered(circuit: Circuit, calls: int) -> Circuit:
    """The circuit after as many calls as it admits, at most `calls`, have started."""
    for _ in range(calls):
        if admits(circuit, circuit.until):
            circuit, _ = enter(circuit)
    return circuit


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
    held = after(circuit, "throttled", entry="probe", now=now, wait=wait)
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
        ("repeated", "open"),
    ],
)
def test_the_probe_decides(outcome, state):
    assert after(Circuit("half_open", 3, 5.0), outcome, entry="probe").state == state


def test_an_abandoned_probe_lets_the_next_call_probe_at_once():
    circuit = after(Circuit("half_open", 3, 5.0), "abandoned", entry="probe", now=10.0)
    assert admits(circuit, 10.0)


@given(circuits, st.sampled_from(OUTCOMES), st.floats(0, 100))
def test_every_state_knows_every_outcome_and_others_never_decide_for_a_probe(circuit, outcome, now):
    after(circuit, outcome, entry="probe", now=now)
    if circuit.state == "half_open":
        assert after(circuit, outcome, now=now) == circuit


@pytest.mark.parametrize(
    ("before", "outcome", "after_it"),
    [
        (CLOSED, "failure", Circuit("closed", 1, 30.0, False, FIRST_AT_ONCE)),
        (CLOSED, "repeated", Circuit("closed", 0, 30.0, False, FIRST_AT_ONCE)),
        (Circuit("closed", 2), "failure", Circuit("open", 3, 70.0)),
        (CLOSED, "throttled", Circuit("closed", 0, 30.0, True, FIRST_AT_ONCE)),
        (Circuit("closed", 2), "throttled", Circuit("closed", 2, 30.0, True, FIRST_AT_ONCE)),
        (
            Circuit("closed", 1, 40.0, False, 9),
            "throttled",
            Circuit("closed", 1, 40.0, False, FIRST_AT_ONCE),
        ),
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
    assert after(before, outcome, entry="probe", wait=20.0) == after_it


def test_a_failure_whose_time_to_wait_is_longer_than_the_recovery_holds_the_open_circuit_for_it():
    assert after(Circuit("closed", 2), "failure", wait=90.0) == Circuit("open", 3, 100.0)
    probed = after(Circuit("half_open", 3, 5.0), "failure", entry="probe", wait=90.0)
    assert probed == Circuit("open", 4, 100.0)


def test_a_call_makes_an_open_circuit_half_open_and_leaves_a_closed_one():
    assert enter(Circuit("open", 3, 5.0)) == (Circuit("half_open", 3, 5.0), "probe")
    assert enter(Circuit("closed", 2)) == (Circuit("closed", 2), "free")


@given(st.integers(0, 2), st.floats(0.1, 100))
def test_a_pause_ends_closed_with_the_count_from_before(failures, wait):
    paused = after(Circuit("closed", failures), "throttled", wait=wait)
    assert not admits(paused, 10.0)
    assert admits(paused, 10.0 + wait)
    assert (paused.state, paused.failures) == ("closed", failures)
    assert enter(paused)[1] == "returning"


def test_after_a_pause_few_calls_start_at_once_and_each_success_admits_one_more():
    circuit = entered(after(CLOSED, "throttled", wait=20.0), 99)
    seen = [circuit.returning]
    while circuit is not CLOSED:
        circuit = entered(after(circuit, "success", entry="returning", now=50.0), 99)
        seen.append(circuit.returning)
    assert seen == [*range(FIRST_AT_ONCE, ALL_AT_ONCE + 1), 0]


@given(st.sampled_from(["abandoned", "rejected", "failure"]))
def test_a_call_that_returns_and_does_not_succeed_leaves_its_place_to_another(outcome):
    circuit = entered(after(CLOSED, "throttled", wait=20.0), 99)
    assert not admits(circuit, 50.0)
    assert admits(after(circuit, outcome, entry="returning", now=50.0), 50.0)


def test_a_success_of_a_call_from_before_the_pause_does_not_end_it():
    paused = after(after(Circuit("closed", 2), "throttled", wait=20.0), "success", now=11.0)
    assert not admits(paused, 29.0)
    assert paused.failures == 0


class Breaker(RuleBasedStateMachine):
    """Calls set out, overlap and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit, self.now = CLOSED, 0.0
        self.out: list[Entry] = []

    @rule(seconds=st.floats(0, 100))
    def time_goes_by(self, seconds):
        self.now += seconds

    @rule()
    def a_call_wants_to_go(self):
        if admits(self.circuit, self.now):
            self.circuit, entry = enter(self.circuit)
            self.out.append(entry)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), wait=st.floats(0, 50))
    def a_call_ends(self, data, outcome, wait):
        entry = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.circuit = leave(self.circuit, outcome, entry, now=self.now, rules=RULES, wait=wait)

    @invariant()
    def at_most_one_probe_is_out_and_only_while_half_open(self):
        assert self.out.count("probe") == (self.circuit.state == "half_open")

    @invariant()
    def no_circuit_keeps_calls_out_that_none_is_under_way_for(self):
        if not self.out:
            assert admits(self.circuit, self.circuit.until)

    @invariant()
    def an_open_circuit_opens_again_some_day(self):
        assert self.circuit.state != "open" or admits(self.circuit, self.circuit.until)

    @invariant()
    def a_closed_circuit_is_below_its_threshold(self):
        assert self.circuit.state != "closed" or self.circuit.failures < RULES.failure_threshold


TestBreaker = Breaker.TestCase
