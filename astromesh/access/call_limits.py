"""How often each principal may call (`spec.api.rate_limit`): in one process, or over all of one PostgreSQL.

One process remembers the time of every call (`astromesh.api.auth`). Over several, a row has the number of
calls of the current window and of the one before. Of the earlier ones, those that are younger than a window
are estimated, as if they were evenly spread.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, TypeAlias

from astromesh.tools.base import RateLimit

#: tenant and principal
Principal: TypeAlias = tuple[str, str]


class CallState(NamedTuple):
    """What a principal may do after a call.

    Args:
        wait: seconds until the call may be made; 0: it may be made now, and is counted.
        left: how many more calls may be made now.
        reset: seconds until all calls of the limit may be made.
    """

    wait: float
    left: int
    reset: float


class CallLimit(Protocol):
    """Counts the calls of principals."""

    limit: RateLimit

    async def take(self, principal: Principal) -> CallState:
        """Counts a call if it may be made now. Raises: StoreError: what counts is unavailable."""


class Window(NamedTuple):
    """The row of a principal.

    Args:
        at: now, in windows since the epoch.
        calls, earlier: how many calls of this window, and of the one before, were allowed.
    """

    at: float
    calls: int
    earlier: int


def state_of(window: Window, limit: RateLimit, *, allowed: bool) -> CallState:
    """Returns what is left after a call that was allowed or refused."""
    part, seconds = 1.0 - (window.at - math.floor(window.at)), limit.window_seconds
    left = max(0, math.floor(limit.max_calls - window.calls - window.earlier * part))
    reset = seconds * (part + (1.0 if window.calls else 0.0)) if window.calls or window.earlier else 0.0
    if allowed:
        return CallState(0.0, left, reset)
    room = limit.max_calls - window.calls - 1
    if room >= 0 and window.earlier:  # when enough of the earlier calls are older than a window
        return CallState(max(1e-3, seconds * (part - room / window.earlier)), left, reset)
    later = 1.0 - (limit.max_calls - 1) / window.calls
    return CallState(seconds * (part + later), left, reset)
