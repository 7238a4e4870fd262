"""The inspector: pauses, steps and resumes Tasks without changing them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from astromesh.types import JsonObject


@dataclass(slots=True)
class _PausedStage:
    task: str
    stage: str
    input: Any
    context: JsonObject | None
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def to_json(self) -> JsonObject:
        return {"task": self.task, "stage": self.stage, "input": self.input, "context": self.context}


@dataclass(slots=True)
class _TaskWatch:
    """The pauses of one Task.

    Args:
        all_stages: pauses before every stage.
        before: pauses before these stages.
    """

    all_stages: bool = False
    before: frozenset[str] = frozenset()
    waiting: list[_PausedStage] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Inspector:
    """A gate that an operator opens.

    Args:
        pause_before: stages that every Task waits before (`task.pause_before`).
    """

    def __init__(self, pause_before: Iterable[str] = ()) -> None:
        self.pause_before = frozenset(pause_before)
        self._watches: dict[str, _TaskWatch] = {}

    def applies(self, task: str, stage: str) -> bool:
        """See `Gate`."""
        watched = self._watches.get(task.partition("/")[0])
        paused = watched is not None and (watched.all_stages or stage in watched.before)
        return paused or stage in self.pause_before

    async def __call__(self, task: str, stage: str, input: Any, context: JsonObject | None) -> None:
        """See `Gate`."""
        watched = self._watch(task.partition("/")[0])
        one = _PausedStage(task, stage, input, context)
        watched.waiting.append(one)
        watched.changed.set()
        try:
            await one.released.wait()
        finally:
            if one in watched.waiting:
                watched.waiting.remove(one)

    def pause(self, run_id: str, before: Iterable[str] = ()) -> None:
        """Pauses the Task before these stages; without any, before every stage from now on."""
        watched, stages = self._watch(run_id), frozenset(before)
        watched.before |= stages
        watched.all_stages = watched.all_stages or not stages

    def step(self, run_id: str) -> bool:
        """Runs the stage that has waited longest and pauses before the next.

        Returns False where none waits.
        """
        watched = self._watches.get(run_id)
        if watched is None or not watched.waiting:
            return False
        watched.all_stages = True
        watched.waiting.pop(0).released.set()
        return True

    def resume(self, run_id: str) -> bool:
        """Resumes the Task, which still pauses where the manifest says so.

        Returns False where it had no pauses.
        """
        watched = self._watches.get(run_id)
        if watched is None:
            return False
        watched.all_stages, watched.before = False, frozenset()
        waiting, watched.waiting = watched.waiting, []
        for one in waiting:
            one.released.set()
        return True

    def waiting(self, run_id: str) -> list[JsonObject]:
        """Returns the stages that wait, with their input and context package."""
        watched = self._watches.get(run_id)
        return [one.to_json() for one in watched.waiting] if watched else []

    async def wait_until_paused(self, run_id: str) -> None:
        """Waits until a stage of the Task is paused."""
        watched = self._watch(run_id)
        while not watched.waiting:
            watched.changed.clear()
            await watched.changed.wait()

    def forget(self, run_id: str) -> None:
        self._watches.pop(run_id, None)

    def _watch(self, run_id: str) -> _TaskWatch:
        return self._watches.setdefault(run_id, _TaskWatch())
