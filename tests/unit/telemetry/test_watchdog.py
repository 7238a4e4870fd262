"""The watchdog of the event loop."""

from __future__ import annotations

import asyncio
import copy
import ctypes
import linecache
import subprocess
import sys
import threading
import time
import weakref

from structlog.testing import capture_logs

from astromesh.telemetry.watchdog import BLOCKED_SECONDS, LOOK_SECONDS, REST_SECONDS, TICK_SECONDS, Watchdog


def holds_the_loop(seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        copy.deepcopy([[[[]]]] * 500)  # most of the time deep in a library


async def test_what_holds_the_loop_is_counted_and_named() -> None:
    watchdog = Watchdog()
    watchdog.start()
    linecache.clearcache()
    with capture_logs() as lines:
        for _ in range(20):  # a thread that looks may be late on a busy machine: somebody blocks until it saw
            await asyncio.sleep(2 * TICK_SECONDS)
            holds_the_loop(4 * (BLOCKED_SECONDS + TICK_SECONDS))
            await asyncio.sleep(4 * TICK_SECONDS)
            blocks = [line["where"] for line in lines if line["event"] == "event_loop_blocked"]
            if any("holds_the_loop" in where for where in blocks):
                break
    watchdog.stop()
    assert watchdog.blocks >= 1
    assert any("holds_the_loop" in where for where in blocks)
    assert watchdog.worst() > BLOCKED_SECONDS
    assert __file__ not in linecache.cache, "it keeps no source of what it names"
    assert watchdog.worst() > BLOCKED_SECONDS, "whoever asks takes nothing away from others who ask"


class Large:
    """What a function holds while it blocks."""


async def test_nothing_on_the_stack_of_a_block_is_kept() -> None:
    """The thread looks at it; what stands in its variables may be large, or private."""
    kept: list[weakref.ref[Large]] = []

    def holds() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        holds_the_loop(4 * (BLOCKED_SECONDS + TICK_SECONDS))

    watchdog = Watchdog()
    watchdog.start()
    try:
        async with asyncio.timeout(60):
            while not watchdog.blocks:
                holds()
                await asyncio.sleep(4 * TICK_SECONDS)
            while kept[-1]() is not None:
                await asyncio.sleep(TICK_SECONDS)
    finally:
        watchdog.stop()


async def test_a_loop_that_gets_no_processor_is_late_and_holds_nothing() -> None:
    await asyncio.to_thread(time.sleep, 0)  # a new thread is waited for
    watchdog = Watchdog()
    watchdog.start()
    with capture_logs() as lines:
        await asyncio.sleep(2 * TICK_SECONDS)
        await asyncio.to_thread(ctypes.PyDLL(None).usleep, 500_000)  # no other thread gets the interpreter
        await asyncio.sleep(4 * TICK_SECONDS)
    watchdog.stop()
    assert watchdog.worst() > BLOCKED_SECONDS
    assert [line for line in lines if line["event"] == "event_loop_blocked"] == []


async def test_an_idle_loop_is_left_alone_until_it_has_work() -> None:
    """A watch that measures wakes loop and thread fifty times a second."""
    watchdog = Watchdog()
    watchdog.start()
    try:
        await asyncio.sleep(REST_SECONDS + 10 * TICK_SECONDS)
        measured = watchdog.worst()
        assert await ticks_of(watchdog) == 0
        watchdog.touch()
        assert await ticks_of(watchdog) > 0
        assert watchdog.worst() >= measured > 0, "what it measured before is still told"
    finally:
        watchdog.stop()


async def ticks_of(watchdog: Watchdog) -> int:
    before = watchdog.ticks
    await asyncio.sleep(10 * TICK_SECONDS)
    return watchdog.ticks - before


async def test_what_holds_an_idle_loop_is_named_too() -> None:
    watchdog = Watchdog()
    watchdog.start()
    with capture_logs() as lines:
        for _ in range(10):  # as above: a thread that looks may be late on a busy machine
            await asyncio.sleep(REST_SECONDS + 10 * TICK_SECONDS)
            holds_the_loop(2 * LOOK_SECONDS)
            await asyncio.sleep(10 * TICK_SECONDS)
            blocks = [line["where"] for line in lines if line["event"] == "event_loop_blocked"]
            if any("holds_the_loop" in where for where in blocks):
                break
    watchdog.stop()
    assert any("holds_the_loop" in where for where in blocks)


async def test_work_that_no_request_began_is_watched() -> None:
    busy = threading.Event()
    watchdog = Watchdog(busy.is_set)
    watchdog.start()
    try:
        await asyncio.sleep(REST_SECONDS + 10 * TICK_SECONDS)
        busy.set()
        async with asyncio.timeout(30 * LOOK_SECONDS):
            while not await ticks_of(watchdog):
                await asyncio.sleep(TICK_SECONDS)
    finally:
        watchdog.stop()


#: each collection lets other threads continue, and finds something again
COLLECTED = """
import asyncio, gc, time
from astromesh.telemetry.watchdog import BLOCKED_SECONDS, Watchdog

class Knot:
    def __init__(self):
        self.itself = self

    def __del__(self):
        if gc.get_threshold()[0] == 1:
            Knot()
            time.sleep(0.0005)

def work(depth):
    return work(depth - 1) if depth else 0

async def main():
    watchdogs = [Watchdog() for _ in range(8)]
    for watchdog in watchdogs:
        watchdog.start()
    await asyncio.sleep(0.05)
    Knot()
    gc.set_threshold(1, 1000, 1000)
    ends = time.monotonic() + 10 * BLOCKED_SECONDS
    while time.monotonic() < ends:
        work(9)
    gc.set_threshold(700)
    for watchdog in watchdogs:
        watchdog.stop()
    while not gc.isenabled():  # one may look now
        time.sleep(0.01)

asyncio.run(main())
print("ended")
"""


def test_a_collection_during_a_look_changes_nothing() -> None:
    """Python crashed or stood still: the stack that a thread looked at was another one after it."""
    ran = subprocess.run(
        [sys.executable, "-c", COLLECTED], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "ended\n"), ran.stderr
