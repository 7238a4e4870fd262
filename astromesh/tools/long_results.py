"""Complete results of tools that were too long for a model, kept in memory for an hour."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, Self

from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import SessionKey

#: most characters of one result and of all results, and seconds that a result is kept
MAX_RESULT_CHARACTERS, MAX_TOTAL_CHARACTERS, RESULT_TTL_SECONDS = 4 << 20, 32 << 20, 3600.0


class LongResult(NamedTuple):
    """One result. `characters`: of the complete result, if only its beginning was stored."""

    text: str
    characters: int
    tenant: str
    owner: str
    expires_at: float


class LongResults:
    """Results by run and id; drops the oldest first. A shared resource of `Deps.resources`.

    Args:
        clock: for the expiry.
        max_characters: of all results.
    """

    def __init__(self, clock: Clock | None = None, max_characters: int = MAX_TOTAL_CHARACTERS) -> None:
        self._clock, self._max_characters = clock or SystemClock(), max_characters
        self._results: OrderedDict[tuple[str, str], LongResult] = OrderedDict()
        self._characters = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._results.clear()

    def add(self, run_id: str, call_id: str, text: str, session: SessionKey, owner: str) -> str:
        """Stores a result and returns its id within the run."""
        name, again = call_id, 1
        while (run_id, name) in self._results:  # some models restart the numbers of calls in each turn
            again += 1
            name = f"{call_id}-{again}"
        until = self._clock.monotonic() + RESULT_TTL_SECONDS
        kept = LongResult(text[:MAX_RESULT_CHARACTERS], len(text), session.tenant, owner, until)
        self._results[run_id, name] = kept
        self._characters += len(kept.text)
        while self._characters > self._max_characters or self._oldest_has_expired():
            self._drop(next(iter(self._results)))
        return name

    def find(self, run_id: str, name: str) -> LongResult | None:
        """Returns a result of a run, or None if the id is unknown or the result has expired."""
        found = self._results.get((run_id, name))
        return found if found and found.expires_at > self._clock.monotonic() else None

    def erase_owner(self, tenant: str, owner: str) -> int:
        """Drops the results of one principal; returns their number."""
        theirs = [key for key, one in self._results.items() if (one.tenant, one.owner) == (tenant, owner)]
        for key in theirs:
            self._drop(key)
        return len(theirs)

    def _oldest_has_expired(self) -> bool:
        oldest = next(iter(self._results.values()), None)
        return oldest is not None and oldest.expires_at <= self._clock.monotonic()

    def _drop(self, key: tuple[str, str]) -> None:
        self._characters -= len(self._results.pop(key).text)
