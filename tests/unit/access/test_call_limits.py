"""When a principal may call again, from the counts of two windows."""

from __future__ import annotations

import pytest

from astromesh.access.call_limits import Window, state_of
from astromesh.tools.base import RateLimit


@pytest.mark.parametrize(
    ("window", "allowed", "state"),
    [
        (Window(7.75, 0, 0), True, (0.0, 10, 0.0)),
        (Window(7.25, 1, 0), True, (0.0, 9, 175.0)),
        (Window(7.25, 2, 8), True, (0.0, 2, 175.0)),
        (Window(7.25, 0, 8), True, (0.0, 4, 75.0)),
        (Window(7.25, 10, 0), False, (85.0, 0, 175.0)),
        (Window(7.25, 20, 4), False, (130.0, 0, 175.0)),  # the limit was 20 until now
        (Window(7.75, 8, 8), False, (12.5, 0, 125.0)),
        (Window(7.75, 9, 8), False, (25.0, 0, 125.0)),
        (Window(7.75, 8, 4), False, (0.001, 1, 125.0)),  # the last one was counted this very moment
    ],
)
def test_when_a_principal_may_call_again(
    window: Window, allowed: bool, state: tuple[float, int, float]
) -> None:
    """Ten calls in a hundred seconds."""
    assert state_of(window, RateLimit(10, 100.0), allowed=allowed) == pytest.approx(state)


def test_the_only_call_of_a_window_may_be_made_again_when_it_is_older_than_one() -> None:
    assert state_of(Window(7.25, 1, 0), RateLimit(1, 100.0), allowed=False).wait == pytest.approx(175.0)
