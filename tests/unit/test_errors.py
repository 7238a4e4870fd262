"""Which exceptions of foreign code are its failure, and which end the process (Ctrl-C, SIGTERM)."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Generator

import pytest

from astromesh.errors import is_failure


def raised_by(code: Callable[[], object]) -> BaseException:
    try:
        code()
    except BaseException as error:  # noqa: BLE001 (the test looks at it)
        return error
    raise AssertionError("nothing was raised")


def interrupt() -> None:
    raise KeyboardInterrupt


class Panic(BaseException):
    """As extensions in Rust raise it."""


def panic() -> None:
    raise Panic("index out of bounds")


def leave_generator() -> None:
    raise GeneratorExit


async def test_what_foreign_code_raises_is_its_failure() -> None:
    assert is_failure(raised_by(lambda: sys.exit(2)))
    assert is_failure(raised_by(lambda: int("x")))
    assert is_failure(raised_by(interrupt))
    assert is_failure(asyncio.CancelledError()), "the task itself is not cancelled"
    assert is_failure(raised_by(panic))
    assert is_failure(raised_by(leave_generator))


async def test_a_coroutine_that_is_closed_has_not_failed() -> None:
    """Neither where it waits for a future, nor in an iterator that it reads."""
    found: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except GeneratorExit as error:
            found.append(is_failure(error))
            raise

    async def outer() -> None:
        try:
            await wait()
        except BaseException as error:
            found.append(is_failure(error))
            raise

    waiting = outer()
    waiting.send(None)
    waiting.close()

    def values() -> Generator[int, None, None]:
        try:
            yield 1
        except GeneratorExit as error:
            found.append(is_failure(error))

    read = values()
    next(read)
    read.close()
    assert found == [False, False, False]
    assert not is_failure(GeneratorExit())


def test_a_keyboard_interrupt_of_a_thread_is_never_a_signal() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_failure(raised_by(interrupt))))
    thread.start()
    thread.join()
    assert found == [True]


def test_ctrl_c_is_no_failure_of_the_code_that_it_interrupts() -> None:
    """asyncio cancels the run at the first Ctrl-C, and raises at the second one, inside whatever runs."""
    found: list[bool] = []

    async def busy() -> None:
        signal.raise_signal(signal.SIGINT)
        found.append(is_failure(raised_by(lambda: signal.raise_signal(signal.SIGINT))))
        await asyncio.sleep(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else asyncio leaves it alone
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(busy())
        found.append(is_failure(raised_by(lambda: signal.raise_signal(signal.SIGINT))))  # outside asyncio
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [False, False]


def test_an_exit_by_sigterm_is_no_failure_of_the_code_that_it_interrupts() -> None:
    def leave(number: int, frame: object) -> None:
        sys.exit(0)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        error = raised_by(lambda: signal.raise_signal(signal.SIGTERM))
        assert isinstance(error, SystemExit)
        assert not is_failure(error)
    finally:
        signal.signal(signal.SIGTERM, before)
