"""Rate limits as pure decisions: a sliding window of call times by key. Time is an argument.

A call goes through when fewer than `max_calls` before it are younger than `window_seconds`. Refused calls
are not counted, so that trying again does not push the end away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from astromesh.tools.base import RateLimit

#: stored keys before idle ones are removed; keeps the cost of removal constant per call
_SWEEP_AT = 1024


def wait_for(calls: deque[float], limit: RateLimit, now: float) -> float:
    """Returns the seconds until the next call is allowed, 0.0 for now. Removes calls outside the window.

    Args:
        limit: of calls.
        calls: times of the allowed calls, oldest first.
        now: seconds of the same clock.
    """
    start = now - limit.window_seconds
    while calls and calls[0] <= start:
        calls.popleft()
    if len(calls) < limit.max_calls:
        return 0.0
    return calls[-limit.max_calls] - start


class SlidingWindow:
    """The calls of every key under one limit. Keys without calls in the window are removed."""

    __slots__ = ("_calls", "_sweep_at", "limit")

    def __init__(self, limit: RateLimit) -> None:
        self.limit = limit
        self._calls: dict[Hashable, deque[float]] = {}
        self._sweep_at = _SWEEP_AT

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, key: Hashable, now: float) -> float:
        """Counts a call and returns 0.0, or returns the seconds to wait and counts nothing."""
        calls = self._calls.get(key)
        if calls is None:
            self._sweep(now)
            calls = self._calls[key] = deque()
        wait = wait_for(calls, self.limit, now)
        if wait <= 0.0:
            calls.append(now)
        return wait

    def state(self, key: Hashable, now: float) -> tuple[int, float]:
        """Returns how many calls are left, and the seconds until all are."""
        calls = self._calls.get(key)
        if not calls:
            return self.limit.max_calls, 0.0
        wait_for(calls, self.limit, now)
        until = calls[-1] + self.limit.window_seconds if calls else now
        return self.limit.max_calls - len(calls), until - now

    def _sweep(self, now: float) -> None:
        if len(self._calls) < self._sweep_at:
            return
        start = now - self.limit.window_seconds
        self._calls = {key: calls for key, calls in self._calls.items() if calls and calls[-1] > start}
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._calls))
