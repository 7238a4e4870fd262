"""Waiting for people: a run that waits is a row in a database, and nothing else.

The step that asks adds itself here and never comes back. When every step that is under way waits and nothing
else has happened for a moment, the segment ends as `waiting`: its coroutines are gone. The decision is a
finished step; it queues the next segment, which comes back to this place by the record and finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from astromesh.abc.clock import Clock
from astromesh.abc.durable import Step
from astromesh.abc.tool import Asked
from astromesh.types import JsonObject

#: seconds in which other branches of the run may go on before it pauses
SETTLE = 0.05


class Waiting:
    """What a segment waits for.

    Args:
        pause: ends the segment; called once.
    """

    def __init__(self, clock: Clock, pause: Callable[[], None]) -> None:
        self._clock, self._pause = clock, pause
        self._watch: asyncio.Task[None] | None = None
        #: steps that wait, and what each asks
        self.open: list[tuple[Step, JsonObject]] = []
        #: model and tool calls under way, and how many have begun
        self.active = self.begun = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """A call is under way."""
        self.active += 1
        self.begun += 1
        try:
            yield
        finally:
            self.active -= 1

    @contextmanager
    def within(self) -> Iterator[None]:
        """The call under way waits for a nested run, whose own calls count."""
        self.active -= 1
        try:
            yield
        finally:
            self.active += 1

    async def decision(self, step: Step, asked: Asked, found: Step | None) -> JsonObject:
        """What was decided. Where nothing was yet, this never returns: the segment ends instead."""
        if found is not None and found.state == "done":
            return found.output or {}
        question = (found.output if found is not None else None) or self._question(step, asked)
        if question["expires_at"] <= self._clock.now():
            return {"decision": "expired"}
        self.open.append((step._replace(output=question), question))
        if self._watch is None:
            self._watch = asyncio.create_task(self._until_still())
        with self.within():
            await asyncio.get_running_loop().create_future()
        raise AssertionError("a pause only ends by cancelling")

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _question(self, step: Step, asked: Asked) -> JsonObject:
        now = self._clock.now()
        return {
            "kind": asked.kind,
            "name": asked.name,
            "arguments": asked.arguments,
            "question": asked.question,
            "path": step.path,
            "n": step.n,
            "asked_at": now,
            "expires_at": now + asked.seconds,
            "parameters": asked.parameters,
            "agent": asked.agent,
        }

    async def _until_still(self) -> None:
        before = -1
        while self.active or self.begun != before:
            before = self.begun
            await asyncio.sleep(SETTLE)
        self._watch = None
        self._pause()
