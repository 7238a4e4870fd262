"""Graceful shutdown of a server.

Between the signal and the end of its runs the server takes connections as before. It answers requests
that would start a run
with 503 `shutting_down`, and `/health/ready` with 503, so that a load balancer stops sending. A second
signal ends the wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import structlog

from astromesh.api.app import Server
from astromesh.runtime.engine import AgentRuntime

#: seconds after everything was closed in order
EXIT_SECONDS = 5.0


log = structlog.get_logger("astromesh.server")


def exit_within(seconds: float = EXIT_SECONDS) -> None:
    """Ends the process with 0 if it has not ended by then.

    An event loop waits at its end for the threads of its default executor (`asyncio.to_thread`), and Python
    for those of every executor: one that hangs in a tool would keep the process for ever.
    """
    last = threading.Timer(seconds, _force_exit, (seconds,))
    last.daemon = True
    last.start()


def _force_exit(seconds: float) -> None:
    names = sorted(t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
    log.warning("ended_by_force", after_seconds=seconds, threads=names)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


# A server that is asked to end finishes first what it has begun.
#
# Between the signal and the end of its runs it takes connections as before; what would start a run is
# answered
# 503 `shutting_down`, and `/health/ready` 503. So a balancer learns that it leaves, and nobody is refused a
# connection meanwhile. A second signal ends the waiting.

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def drain_before_shutdown(app: Server, grace: float) -> None:
    """Wraps the lifespan of an app that uvicorn serves in the main thread of a process.

    Args:
        grace: seconds that runs under way get.
    """
    runtime: AgentRuntime = app.state.runtime
    inner = app.router.lifespan_context

    async def drain() -> None:
        await app.state.fair_start.wait_for_earlier()  # what came before the signal is no new run
        await runtime.drain(grace)
        for follower in tuple(app.state.followers):  # their readers come back, to whoever is there then
            follower.close()

    @asynccontextmanager
    async def lifespan(given: Any) -> AsyncIterator[Any]:
        async with inner(given) as state:
            with _run_before_shutdown(drain):
                yield state
        exit_within()

    app.router.lifespan_context = lifespan


@contextmanager
def _run_before_shutdown(work: Callable[[], Any]) -> Iterator[None]:
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
