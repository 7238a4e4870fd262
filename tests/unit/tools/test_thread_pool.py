"""Threads for blocking functions: bounded, never joined, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from astromesh.tools.executor import ThreadPool


async def test_results_and_errors_come_back():
    """As if the function had been called here, in another thread."""
    threads = ThreadPool(2, "t")
    assert await threads.start(lambda: threading.current_thread().name).future == "t-1"
    with pytest.raises(ZeroDivisionError):
        await threads.start(lambda: 1 / 0).future


async def test_stop_iteration_is_an_error_and_not_a_wait_for_ever():
    """`next()` on something empty is an everyday fault of functions."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads_of(1).start(lambda: next(iter([]))).future


async def test_no_more_threads_than_allowed_and_all_calls_are_done():
    """Further calls wait for a free thread."""
    threads, running, most = ThreadPool(3, "t"), [0], [0]
    lock = threading.Lock()

    def work(number: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.002)
        with lock:
            running[0] -= 1
        return number

    results = await asyncio.gather(*(threads.start(partial(work, n)).future for n in range(30)))
    assert results == list(range(30))
    assert 1 < most[0] <= 3


async def test_a_call_that_nobody_waits_for_any_more_is_not_begun():
    """What was cancelled while it waited for a thread has no effect later."""
    threads, release, begun = threads_of(1), threading.Event(), []
    busy = threads.start(release.wait).future
    waiting = threads.start(lambda: begun.append(1)).future
    waiting.cancel()
    release.set()
    await busy
    await threads.start(lambda: None).future
    assert begun == []


def threads_of(most: int) -> ThreadPool:
    return ThreadPool(most, "t")


def test_a_function_that_hangs_does_not_keep_the_process_from_ending():
    """A server must be able to stop whatever its tools do."""
    program = (
        "import asyncio, threading\nfrom astromesh.tools.executor import ThreadPool\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.wait_for(ThreadPool(1, 't').start(threading.Event().wait).future, 0.05)\n"
        "    except TimeoutError:\n        print('given up')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "given up\n"
