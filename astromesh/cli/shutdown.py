"""Graceful shutdown of a server.

Between the signal and the end of its runs, the server accepts connections as before. It answers requests that
start a run with 503 `shutting_down`, and `/health/ready` with 503, so that a load balancer stops sending. A
second signal ends the wait.

`astromesh drain` sends SIGUSR1: the process does the same and stays, until SIGTERM.
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
from pathlib import Path
from typing import Any

import orjson

from astromesh.api.app import Server
from astromesh.durable.leases import WorkerHeartbeat, worker_name
from astromesh.logs import get_logger
from astromesh.runtime.engine import AgentRuntime

#: seconds that a process has to end by itself once everything is closed
EXIT_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: seconds between two reports of a process, and of one that drains; more seconds than any run takes
_ALIVE_SECONDS, _REPORT_SECONDS, _ENDLESS_SECONDS = 5.0, 0.25, 1e9
log = get_logger("astromesh.server")


def exit_within(seconds: float = EXIT_SECONDS) -> None:
    """Ends the process with 0 unless it ends by itself in time.

    At its end, an event loop waits for the threads of its default executor (`asyncio.to_thread`), and Python
    for those of every executor. A thread that hangs in a tool would keep the process forever.
    """
    timer = threading.Timer(seconds, _force_exit, (seconds,))
    timer.daemon = True
    timer.start()


def _force_exit(seconds: float) -> None:
    names = sorted(t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
    log.warning("ended_by_force", after_seconds=seconds, threads=names)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def drain_before_shutdown(app: Server, grace: float) -> None:
    """Lets a server finish its runs between a signal and uvicorn's own handling of it.

    Args:
        app: served in the main thread of a process, whose signal handlers uvicorn sets before the lifespan.
        grace: seconds that active runs get.
    """
    runtime: AgentRuntime = app.state.runtime
    inner = app.router.lifespan_context

    async def drain() -> None:
        await app.state.fair_start.wait_for_earlier()  # requests before the signal are not new runs
        await runtime.drain(grace)
        for follower in tuple(app.state.followers):  # their readers reconnect to another server
            follower.close()

    @asynccontextmanager
    async def lifespan(scope: Any) -> AsyncIterator[Any]:
        async with inner(scope) as state:
            with _run_before_shutdown(drain), drained_on_request(runtime):
                yield state
        exit_within()

    app.router.lifespan_context = lifespan


def processes_of(data: Path) -> WorkerHeartbeat:
    """Returns the servers and workers of a data folder, for `astromesh drain`."""
    return WorkerHeartbeat(data / "processes")


@contextmanager
def drained_on_request(runtime: AgentRuntime) -> Iterator[None]:
    """Drains this process at SIGUSR1, and reports how far it is. It must run in the main thread."""
    loop, processes, name = asyncio.get_running_loop(), processes_of(runtime.data_dir), worker_name()
    requested = asyncio.Event()

    def report(state: str) -> None:
        about = {"pid": os.getpid(), "state": state, "active": runtime.active_work}
        processes.report(name, orjson.dumps(about))

    async def reports() -> None:
        while not requested.is_set():  # the time of the file tells that the event loop goes on
            report("working")
            with suppress(TimeoutError):
                await asyncio.wait_for(requested.wait(), _ALIVE_SECONDS)
        log.info("draining", active=runtime.active_work)
        work = asyncio.create_task(runtime.drain(_ENDLESS_SECONDS))
        while not work.done():
            report("draining")
            await asyncio.wait([work], timeout=_REPORT_SECONDS)
        log.info("drained")
        while True:
            report("drained")
            await asyncio.sleep(_ALIVE_SECONDS)

    for dead in processes.dead():
        processes.forget(dead)
    loop.add_signal_handler(signal.SIGUSR1, requested.set)
    processes.enter(name)
    reporting = asyncio.create_task(reports())
    try:
        yield
    finally:
        reporting.cancel()
        processes.leave(name)


@contextmanager
def _run_before_shutdown(work: Callable[[], Any]) -> Iterator[None]:
    """Runs `work` between a signal and its handler; a second signal reaches the handler at once."""
    loop, handlers = asyncio.get_running_loop(), {number: signal.getsignal(number) for number in _SIGNALS}
    tasks: list[asyncio.Task[None]] = []

    def end(number: int) -> None:
        handle = handlers[signal.Signals(number)]
        if callable(handle):
            handle(number, None)

    async def first(number: int) -> None:
        try:
            await work()
        finally:
            end(number)

    def begin(number: int) -> None:
        if tasks:
            end(number)
        else:
            tasks.append(asyncio.create_task(first(number)))

    for number in _SIGNALS:
        signal.signal(number, lambda number, _: loop.call_soon_threadsafe(begin, number))
    try:
        yield
    finally:
        for number, handle in handlers.items():
            signal.signal(number, handle)
        for task in tasks:
            task.cancel()
