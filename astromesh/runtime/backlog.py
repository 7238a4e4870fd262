"""Runs that this process has accepted and begins as soon as it has room: by priority, then age.

Their rows are on disk, and nothing is lost with this: a run that has waited for a while is taken by any
process that has room.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from astromesh.abc.durable import RunRow


class Backlog:
    """A bounded queue in memory.

    Args:
        most: runs that it holds.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, int, str, int]] = []
        self._held: set[str] = set()
        self._order = count()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._held

    def add(self, row: RunRow) -> bool:
        """False where there are too many; one that is here already is here once."""
        if row.run_id in self._held:
            return True
        if len(self._heap) >= self._most:
            return False
        self._held.add(row.run_id)
        heappush(self._heap, (row.priority, next(self._order), row.run_id, row.segment))
        return True

    def pop(self) -> tuple[str, int] | None:
        """The run that is to begin next, and its segment."""
        if not self._heap:
            return None
        _, _, run_id, segment = heappop(self._heap)
        self._held.discard(run_id)
        return run_id, segment
