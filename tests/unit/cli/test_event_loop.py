"""A stray SystemExit ends the task that raised it; Ctrl-C and the main task's own exit end the loop."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import ExitStack

import pytest

from astromesh.api.middleware.limits import MAX_STARTS
from astromesh.cli.commands.serve import listeners_of
from astromesh.cli.event_loop import EventLoop


async def leave() -> None:
    sys.exit(3)


async def interrupt() -> None:
    raise KeyboardInterrupt


def test_the_loop_goes_on_when_a_task_exits() -> None:
    async def main() -> str:
        strays = [asyncio.create_task(leave()), asyncio.create_task(interrupt())]
        with pytest.raises(SystemExit):
            await asyncio.gather(leave())
        await asyncio.wait(strays)
        assert [type(one.exception()) for one in strays] == [SystemExit, KeyboardInterrupt]
        return "done"

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(main()) == "done"


def test_the_exit_of_the_main_task_ends_the_loop() -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner, pytest.raises(SystemExit):
        runner.run(leave())


def test_ctrl_c_cancels_the_main_task_even_after_a_stray_exit() -> None:
    async def main() -> None:
        stray = asyncio.create_task(leave())
        await asyncio.wait([stray])
        assert isinstance(stray.exception(), SystemExit)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else asyncio leaves it alone
    try:
        with asyncio.Runner(loop_factory=EventLoop) as runner, pytest.raises(KeyboardInterrupt):
            runner.run(main())
    finally:
        signal.signal(signal.SIGINT, before)


def test_connections_that_wait_are_accepted_several_at_a_time() -> None:
    """A health check that comes behind many connections does not wait one turn for each."""
    waiting, turns = 4 * MAX_STARTS, 0
    accepted: list[asyncio.BaseTransport] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    async def main() -> None:
        nonlocal turns
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Connection, sock=one) for one in listeners_of(listener)]
        while len(accepted) < waiting:
            turns += 1
            await asyncio.sleep(0)
        for transport in accepted:
            transport.close()
        for server in servers:
            server.close()

    with socket.create_server(("127.0.0.1", 0), backlog=waiting) as listener, ExitStack() as clients:
        for _ in range(waiting):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(main())
    assert turns <= 2 * waiting / MAX_STARTS + 2
