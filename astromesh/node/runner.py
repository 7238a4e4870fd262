"""The node runner: one unit of work through wrappers that are chosen when a graph or workflow is compiled.

A call takes a subject (what the unit works on) and a context (what it is given); the runner knows neither.
What a traverser wants done around a unit (flags, hooks, retry; context, policy, schema, history) are its
wrappers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

S = TypeVar("S")
C = TypeVar("C")
V = TypeVar("V")
R = TypeVar("R")

Call: TypeAlias = Callable[[S, C], Awaitable[R]]
Wrapper: TypeAlias = Callable[[Call[S, C, R]], Call[S, C, R]]
#: what came out of a unit (value or exception, subject, context, milliseconds) as the traverser's record
Settle: TypeAlias = Callable[[V, S, C, float], R]


def unit(
    body: Callable[..., Awaitable[V]],
    settle: Settle[V, S, C, R],
    fail: Settle[BaseException, S, C, R],
    *,
    alone: bool = False,
) -> Call[S, C, R]:
    """A body as a call that never raises: it is timed, and what it raises becomes a failed result.

    `alone`: the body takes the subject without a context.
    """

    async def run(subject: S, context: C) -> R:
        started = perf_counter()
        try:
            value = await (body(subject) if alone else body(subject, context))
        except BaseException as error:  # the border of a node: whatever breaks in it is its result
            if not is_failure(error):
                raise
            return fail(error, subject, context, (perf_counter() - started) * 1000)
        return settle(value, subject, context, (perf_counter() - started) * 1000)

    return run


def is_failure(error: BaseException) -> bool:
    """Whether what a unit raised is its own failure.

    The cancellation of the run, and what ends the process, are not; a cancellation that the unit let out of
    something of its own is.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)


def wrapped(call: Call[S, C, R], wrappers: Sequence[Wrapper[S, C, R]]) -> Call[S, C, R]:
    """A call inside wrappers, the first outermost."""
    for wrap in reversed(wrappers):
        call = wrap(call)
    return call


def bounded(body: Callable[..., Awaitable[V]], seconds: float, name: str) -> Callable[..., Awaitable[V]]:
    """A body that is cancelled when it takes longer; it then raises a TimeoutError that says so."""

    async def run(*arguments: Any) -> V:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await body(*arguments)
        except TimeoutError as error:
            if not limit.expired():  # the unit's own
                raise
            raise TimeoutError(f"{name!r} did not end within {seconds:g} s.") from error

    return run


async def together(works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """Runs works at once and answers in their order; the first failure cancels the others and is raised.

    Not a TaskGroup: in Python 3.11 it leaves its caller marked as cancelled when two of its tasks fail.
    """
    if len(works) <= 1:
        return [await work for work in works]
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in sorted(tasks, key=_failed_first)]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failed_first(task: asyncio.Future[Any]) -> bool:
    """Sorts failed tasks before the others, which may not have ended; those that did keep their order."""
    return not (task.done() and (task.cancelled() or task.exception() is not None))
