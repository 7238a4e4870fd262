"""Sliding windows: how many calls fit, when the next one does, and that nothing grows."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.tools.base import RateLimit
from astromesh.tools.rate_limit import SlidingWindow, wait_for

LIMIT = RateLimit(2, 10.0)


def test_calls_beyond_the_limit_wait_until_the_oldest_leaves_the_window():
    """The answer is the time until the next call fits, and then it does."""
    window = SlidingWindow(LIMIT)
    assert [window.take("a", now) for now in (0.0, 4.0, 5.0)] == [0.0, 0.0, 5.0]
    assert window.take("a", 10.0) == 0.0
    assert window.take("a", 10.0) == 4.0


def test_refused_calls_are_not_counted():
    """Who keeps trying is let in at the same time as who waits."""
    window = SlidingWindow(LIMIT)
    for now in (0.0, 0.0, 1.0, 2.0, 9.9):
        window.take("a", now)
    assert window.take("a", 10.0) == 0.0


def test_keys_do_not_share_a_window():
    """One caller's calls never use up another's."""
    window = SlidingWindow(RateLimit(1, 10.0))
    assert [window.take(key, 0.0) for key in "aba"] == [0.0, 0.0, 10.0]


def test_idle_keys_are_forgotten():
    """A limiter does not remember every caller it ever saw."""
    window = SlidingWindow(LIMIT)
    for caller in range(20_000):
        window.take(caller, caller * 1.0)
    assert len(window) < 3000


@settings(deadline=None)
@given(
    calls=st.lists(st.floats(0, 100), max_size=60).map(sorted),
    most=st.integers(1, 5),
    seconds=st.floats(0.5, 30),
)
def test_no_window_ever_holds_more_than_the_limit(calls, most, seconds):
    """For any times of calls, those let through never exceed the limit within any window."""
    window, passed = SlidingWindow(RateLimit(most, seconds)), []
    for now in calls:
        if window.take("k", now) == 0.0:
            passed.append(now)
    assert all(sum(end - seconds < t <= end for t in passed) <= most for end in passed)


@settings(deadline=None)
@given(calls=st.lists(st.floats(0, 100), max_size=10).map(sorted), now=st.floats(100, 120))
def test_the_wait_it_names_is_enough(calls, now):
    """After the named time a call fits."""
    held = deque(calls)
    wait = wait_for(held, LIMIT, now)
    assert wait >= 0.0
    assert wait_for(held, LIMIT, now + wait + 1e-6) == 0.0


def test_a_call_leaves_the_window_at_its_very_end():
    calls = deque([0.0, 4.0])
    assert wait_for(calls, RateLimit(1, 10.0), 10.0) == 4.0
    assert list(calls) == [4.0]


def test_a_call_that_waits_a_moment_is_refused_too():
    window = SlidingWindow(RateLimit(1, 10.0))
    assert [window.take("a", now) for now in (0.0, 9.5, 10.0)] == [0.0, 0.5, 0.0]


def test_idle_keys_are_looked_for_at_1024_and_live_ones_stay():
    window = SlidingWindow(RateLimit(1, 10.0))
    for key in range(1024):
        window.take(key, 0.0)
    assert window.take("new", 5.0) == 0.0
    assert len(window) == 1025
    assert window.take(0, 5.0) == 5.0  # still known
    for key in range(1025, 2048):
        window.take(key, 0.0)
    assert len(window) == 2048  # twice as many as were alive when they were looked for
    window.take("later", 15.0)
    assert len(window) == 1


def test_keys_are_not_looked_for_before_twice_as_many_as_were_alive():
    window = SlidingWindow(LIMIT)
    for key in range(1025):
        window.take(key, 0.0)
    window.take("later", 100.0)
    assert len(window) == 1026


def test_the_first_search_comes_with_the_1025th_key_and_forgets_what_is_exactly_at_the_end():
    window = SlidingWindow(LIMIT)
    for key in range(1024):
        window.take(key, 0.0)
    window.take("new", 10.0)
    assert len(window) == 1
