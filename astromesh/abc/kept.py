"""Results of tools that were too long for a model: the whole of them, for a while, in this process."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, Self

from astromesh.abc.clock import Clock, SystemClock
from astromesh.types import SessionKey

#: characters of one result that are kept, of all of them together, and seconds that each is kept
MOST_OF_ONE, MOST_OF_ALL, KEPT_SECONDS = 4 << 20, 32 << 20, 3600.0


class KeptResult(NamedTuple):
    """One result. `characters`: of the whole, where only its beginning was kept."""

    text: str
    characters: int
    tenant: str
    owner: str
    until: float


class KeptResults:
    """Results by run and id; the oldest go first. A shared resource of `Deps.resources`.

    Args:
        clock: for how long they are kept.
        most: characters of all of them together.
    """

    def __init__(self, clock: Clock | None = None, most: int = MOST_OF_ALL) -> None:
        self._clock, self._most = clock or SystemClock(), most
        self._results: OrderedDict[tuple[str, str], KeptResult] = OrderedDict()
        self._held = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._results.clear()

    def keep(self, run_id: str, call_id: str, text: str, session: SessionKey, owner: str) -> str:
        """Keeps a result and answers the id that it has within its run."""
        name, again = call_id, 1
        while (run_id, name) in self._results:  # some models number the calls of each turn anew
            again += 1
            name = f"{call_id}-{again}"
        until = self._clock.monotonic() + KEPT_SECONDS
        kept = KeptResult(text[:MOST_OF_ONE], len(text), session.tenant, owner, until)
        self._results[run_id, name] = kept
        self._held += len(kept.text)
        while self._held > self._most or self._oldest_is_over():
            self._drop(next(iter(self._results)))
        return name

    def find(self, run_id: str, name: str) -> KeptResult | None:
        """A result of a run, or None where there is none of this id, or no longer."""
        found = self._results.get((run_id, name))
        return found if found and found.until > self._clock.monotonic() else None

    def erase_owner(self, tenant: str, owner: str) -> int:
        """Drops those of one principal; answers how many."""
        theirs = [key for key, one in self._results.items() if (one.tenant, one.owner) == (tenant, owner)]
        for key in theirs:
            self._drop(key)
        return len(theirs)

    def _oldest_is_over(self) -> bool:
        oldest = next(iter(self._results.values()), None)
        return oldest is not None and oldest.until <= self._clock.monotonic()

    def _drop(self, key: tuple[str, str]) -> None:
        self._held -= len(self._results.pop(key).text)
