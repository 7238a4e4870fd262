"""Calls of Python functions that others wrote: async ones on the event loop, others in threads.

Whoever is cancelled goes on at once, or after a moment; a call that does not end is left behind, on record.
Of one function so many calls may hang; then it is refused, and takes neither threads nor memory from others.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from astromesh.abc.own_tasks import OwnTasks
from astromesh.abc.threads import Threads
from astromesh.errors import ToolBusy

#: calls of one function that may hang at once
MOST_HANGING = 16

log = structlog.get_logger("astromesh.tools")


def _nothing() -> None:
    """Nobody needs to know."""


class PythonCalls:
    """Args: threads: for functions that are not async. own_tasks: for those that are."""

    def __init__(self, threads: Threads, own_tasks: OwnTasks, most_hanging: int = MOST_HANGING) -> None:
        self._threads, self._own_tasks, self._most_hanging = threads, own_tasks, most_hanging

    async def call(
        self,
        function: Callable[..., Any],
        named: Mapping[str, Any],
        name: str,
        on_left: Callable[[], None] = _nothing,
        *,
        is_async: bool,
        places: Sequence[Any] = (),
    ) -> Any:
        """What the function answers or raises.

        Args:
            named, places: arguments by name and by position.
            name: of the function, for people.
            on_left: told where the call goes on although its caller was cancelled.

        Raises:
            ToolBusy: too many calls of it hang.
            CancelledError: with a `ToolBusy` as its argument where the call had not begun by then.
        """
        self._refuse(function, name)
        bound = partial(function, *places, **named)
        if is_async:
            return await self._own_tasks.run(bound, function, self._note, function, name, on_left)
        # the caller's context variables (tracing, CallerContext) are visible in the thread
        begin = partial(contextvars.copy_context().run, self._begin, bound, function, name)
        job = self._threads.start(begin, (function, name))
        try:
            result = await job.future
        except asyncio.CancelledError as error:
            state = self._threads.give_up(job)
            if state == "running":
                self._note(function, name, on_left)
            elif state == "waiting":
                error.args = (self._not_started(name),)
            raise
        if not inspect.isawaitable(result):
            return result
        awaited = partial(_awaited, result)
        return await self._own_tasks.run(awaited, function, self._note, function, name, on_left)

    def _begin(self, bound: Callable[[], Any], function: object, name: str) -> Any:
        self._refuse(function, name)  # those before it may have come to hang while it waited for a thread
        return bound()

    def _refuse(self, function: object, name: str) -> None:
        hanging = self._hanging(function)
        if hanging >= self._most_hanging:
            raise ToolBusy(
                f"{name!r} was not started: {hanging} earlier calls of it still hang. Nothing has happened."
            )

    def _hanging(self, function: object) -> int:
        return self._threads.hanging(function) + self._own_tasks.hanging(function)

    def _note(self, function: object, name: str, on_left: Callable[[], None]) -> None:
        log.warning("tool_given_up", tool=name, hanging=self._hanging(function))
        on_left()

    def _not_started(self, name: str) -> ToolBusy:
        holders = self._threads.holders()
        log.warning("tool_not_started", tool=name, threads=self._threads.most, held_by=holders)
        return ToolBusy(
            f"{name!r} was not started: all {self._threads.most} threads for such calls are busy. "
            "Nothing has happened; it may be called again."
        )


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
