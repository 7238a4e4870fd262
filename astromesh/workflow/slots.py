"""How many stages run at once, over all Tasks of an engine (E55). A waiting Task holds no slot."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Worker(Protocol):
    """Whoever has stages to run. `begin_stage` starts exactly one and gives the slot back afterwards."""

    def begin_stage(self) -> None: ...


class Slots:
    """First come, first served; one wish is one stage.

    Args:
        most: stages that run at once.
    """

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._waiting: deque[Worker] = deque()

    @property
    def taken(self) -> int:
        """Stages that run now."""
        return self._most - self._free

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for a slot."""
        return bool(self._waiting)

    def want(self, worker: Worker) -> None:
        if self._free:
            self._free -= 1
            worker.begin_stage()
        else:
            self._waiting.append(worker)

    def give_back(self) -> None:
        """The stage has ended: the slot goes to whoever waits longest."""
        if self._waiting:
            self._waiting.popleft().begin_stage()
        else:
            self._free += 1

    def forget(self, worker: Worker) -> None:
        """Takes back every wish of a worker that has ended."""
        self._waiting = deque(one for one in self._waiting if one is not worker)
