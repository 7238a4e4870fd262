"""The node runner: one unit of work in wrappers that are chosen when a graph or workflow is compiled.

A call takes a subject (what the unit works on) and a context (what it receives). The runner knows neither.
Graphs wrap flags, hooks and retries around a unit; workflows wrap context, policy, schema and history.

Conditions, transforms, pre- and postprocessors, guards, hooks and inline functions run in the event loop,
where nothing else runs meanwhile. `call_inline` warns about those that hold it for too long. The server also
watches the loop as a whole: see `astromesh.telemetry.watchdog`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from astromesh.errors import is_failure
from astromesh.telemetry.clock import TimeLimit

S = TypeVar("S")
C = TypeVar("C")
V = TypeVar("V")
R = TypeVar("R")

Call: TypeAlias = Callable[[S, C], Awaitable[R]]
Wrapper: TypeAlias = Callable[[Call[S, C, R]], Call[S, C, R]]
#: Makes the result of a unit from a value or exception, the subject, the context and the milliseconds.
Settle: TypeAlias = Callable[[V, S, C, float], R]


def unit(
    body: Callable[..., Awaitable[V]],
    settle: Settle[V, S, C, R],
    fail: Settle[BaseException, S, C, R],
    *,
    subject_only: bool = False,
) -> Call[S, C, R]:
    """Returns a body as a call that measures its time and turns an exception into a failed result.

    Args:
        body: The work.
        settle: Makes the result from the value of the body.
        fail: Makes the result from an exception.
        subject_only: The body takes the subject without a context.
    """

    async def run(subject: S, context: C) -> R:
        started = perf_counter()
        try:
            value = await (body(subject) if subject_only else body(subject, context))
        except BaseException as error:  # the boundary of a node: each exception in it becomes its result
            if not is_failure(error):
                raise
            return fail(error, subject, context, (perf_counter() - started) * 1000)
        return settle(value, subject, context, (perf_counter() - started) * 1000)

    return run


def wrapped(call: Call[S, C, R], wrappers: Sequence[Wrapper[S, C, R]]) -> Call[S, C, R]:
    """Returns a call inside wrappers. The first wrapper is the outermost."""
    for wrap in reversed(wrappers):
        call = wrap(call)
    return call


def bounded(body: Callable[..., Awaitable[V]], seconds: float, name: str) -> Callable[..., Awaitable[V]]:
    """Returns a body that is cancelled after some seconds. It then raises a TimeoutError with its name."""

    async def run(*arguments: Any) -> V:
        try:
            async with TimeLimit(seconds) as limit:
                return await body(*arguments)
        except TimeoutError as error:
            if not limit.expired():  # the unit's own
                raise
            raise TimeoutError(f"{name!r} did not end within {seconds:g} s.") from error

    return run


async def together(works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """Runs coroutines concurrently and returns their results in order. The first failure cancels the others.

    It does not use a TaskGroup. In Python 3.11, a TaskGroup leaves its caller marked as cancelled when two of
    its tasks fail.
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
    """Sorts failed tasks before the others, which may not have ended.

    Those that have ended keep their order.
    """
    return not (task.done() and (task.cancelled() or task.exception() is not None))


# -- plain functions in the event loop --------------------------------------------------------------------


#: Seconds. A function that holds the loop longer is named in a warning.
HELD_SECONDS = 0.1
log = logging.getLogger("astromesh.graph")


def call_inline(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function and returns its value, which may be awaitable.

    Args:
        what: What the function is, for the warning: `The guard`.
    """
    started = perf_counter()
    try:
        return function(*arguments)
    finally:
        if (seconds := perf_counter() - started) > HELD_SECONDS:
            warn_of_hold(what, function, seconds)


def warn_of_hold(what: str, function: Callable[..., Any], seconds: float) -> None:
    """Warns that a function held the event loop."""
    module, name = (getattr(function, key, "") for key in ("__module__", "__qualname__"))
    log.warning(
        "%s %s held the event loop for %.2f s, and nothing else ran. "
        "A node that is a plain function may block: it runs in a thread.",
        what,
        f"{module}.{name}" if name else repr(function),
        seconds,
    )
