"""The inspector (workflow.md E54): Tasks wait before stages, are stepped, go on; nothing of them changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from astromesh.types import JsonObject


@dataclass(slots=True)
class _Waiting:
    task: str
    stage: str
    input: Any
    context: JsonObject | None
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def to_json(self) -> JsonObject:
        return {"task": self.task, "stage": self.stage, "input": self.input, "context": self.context}


@dataclass(slots=True)
class _Watched:
    """Args: everywhere: before every stage; before: only these."""

    everywhere: bool = False
    before: frozenset[str] = frozenset()
    waiting: list[_Waiting] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Inspector:
    """A gate that people open.

    Args:
        pause_before: stages that every Task waits before (`task.pause_before`).
    """

    def __init__(self, pause_before: Iterable[str] = ()) -> None:
        self._always = frozenset(pause_before)
        self._watched: dict[str, _Watched] = {}

    async def __call__(self, task: str, stage: str, input: Any, context: JsonObject | None) -> None:
        watched = self._watched.get(task.partition("/")[0])
        if stage in self._always:
            watched = watched or self._of(task.partition("/")[0])
        elif watched is None or not (watched.everywhere or stage in watched.before):
            return
        one = _Waiting(task, stage, input, context)
        watched.waiting.append(one)
        watched.news.set()
        try:
            await one.released.wait()
        finally:
            if one in watched.waiting:
                watched.waiting.remove(one)

    def pause(self, run_id: str, before: Iterable[str] = ()) -> None:
        """The Task waits before these stages; without any, before every stage from now on."""
        watched, stages = self._of(run_id), frozenset(before)
        watched.before |= stages
        watched.everywhere = watched.everywhere or not stages

    def step(self, run_id: str) -> bool:
        """The stage that waits longest runs, and the Task waits before the next; False where none waits."""
        watched = self._watched.get(run_id)
        if watched is None or not watched.waiting:
            return False
        watched.everywhere = True
        watched.waiting.pop(0).released.set()
        return True

    def resume(self, run_id: str) -> bool:
        """The Task goes on; it still waits where the manifest says so. False where it was not watched."""
        watched = self._watched.get(run_id)
        if watched is None:
            return False
        watched.everywhere, watched.before = False, frozenset()
        waiting, watched.waiting = watched.waiting, []
        for one in waiting:
            one.released.set()
        return True

    def waiting(self, run_id: str) -> list[JsonObject]:
        """Stages that wait, with their input and context package."""
        watched = self._watched.get(run_id)
        return [one.to_json() for one in watched.waiting] if watched else []

    async def paused(self, run_id: str) -> None:
        """Answers when some stage of the Task waits."""
        watched = self._of(run_id)
        while not watched.waiting:
            watched.news.clear()
            await watched.news.wait()

    def forget(self, run_id: str) -> None:
        self._watched.pop(run_id, None)

    def _of(self, run_id: str) -> _Watched:
        return self._watched.setdefault(run_id, _Watched())
