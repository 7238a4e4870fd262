"""A stray SystemExit ends the task that raised it; Ctrl-C and the main task's own exit end the loop."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

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
