"""A server that is asked to end finishes first what it has begun.

Between the signal and the end of its runs it takes connections as before; what would start a run is answered
503 `shutting_down`, and `/health/ready` 503. So a balancer learns that it leaves, and nobody is refused a
connection meanwhile. A second signal ends the waiting.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from astromesh.api.app import Server
from astromesh.cli.ending import end_within
from astromesh.runtime.engine import AgentRuntime

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def drain_first(app: Server, grace: float) -> None:
    """Wraps the lifespan of an app that uvicorn serves in the main thread of a process.

    Args:
        grace: seconds that runs under way get.
    """
    runtime: AgentRuntime = app.state.runtime
    inner = app.router.lifespan_context

    async def drain() -> None:
        await app.state.turns.pass_by()  # what came before the signal is no new run
        await runtime.drain(grace)
        for follower in tuple(app.state.followers):  # their readers come back, to whoever is there then
            follower.close()

    @asynccontextmanager
    async def lifespan(given: Any) -> AsyncIterator[Any]:
        async with inner(given) as state:
            with _before_the_end(drain):
                yield state
        end_within()

    app.router.lifespan_context = lifespan


@contextmanager
def _before_the_end(work: Callable[[], Any]) -> Iterator[None]:
    """Does `work` between a signal and what handles it."""
    loop, ends = asyncio.get_running_loop(), {number: signal.getsignal(number) for number in _SIGNALS}
    working: list[asyncio.Task[None]] = []

    def end(number: int) -> None:
        handle = ends[signal.Signals(number)]
        if callable(handle):
            handle(number, None)

    async def first(number: int) -> None:
        try:
            await work()
        finally:
            end(number)

    def begin(number: int) -> None:
        if working:
            end(number)
        else:
            working.append(asyncio.create_task(first(number)))

    for number in _SIGNALS:
        signal.signal(number, lambda number, _: loop.call_soon_threadsafe(begin, number))
    try:
        yield
    finally:
        for number, handle in ends.items():
            signal.signal(number, handle)
        for task in working:
            task.cancel()
