"""What is away is told once, not at every try."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

#: seconds after which the same reason is told again
AGAIN = 60.0
#: seconds without a failure after which it is back: on a full disk reading goes on while writing fails
CALM = 5.0
#: reasons that are remembered; where there are more, each has its own words, and all of them are new
_MOST = 64


class Outages:
    """Tells that something is away, and that it is back.

    Every reason is told at once when it is new, then once a minute for as long as it holds.

    Args:
        log: the logger.
        away, back: names of the two events.
        now: seconds that never go back.
        about: what is away, in both lines.
    """

    __slots__ = ("_about", "_away", "_back", "_failed", "_log", "_now", "_told")

    def __init__(
        self, log: Any, away: str, back: str, now: Callable[[], float] = monotonic, **about: str
    ) -> None:
        self._log, self._away, self._back, self._now, self._about = log, away, back, now, about
        self._told: dict[str, float] = {}
        self._failed = 0.0

    def away(self, reason: str) -> None:
        """One more try has failed."""
        self._failed = now = self._now()
        if now - self._told.get(reason, -AGAIN) >= AGAIN:
            if len(self._told) >= _MOST:
                self._told.clear()
            self._told[reason] = now
            self._log.warning(self._away, **self._about, error=reason)

    def back(self) -> None:
        """A try has done it. It is told where no other has failed for a moment."""
        if self._told and self._now() - self._failed >= CALM:
            self._told.clear()
            self._log.info(self._back, **self._about)
