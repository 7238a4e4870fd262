"""Measures the lag of event loops and names what blocks them: in servers, and in programs that run graphs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from weakref import WeakKeyDictionary

from astromesh.logs import get_logger

#: seconds between two ticks, and of a block that is logged
TICK_SECONDS, BLOCKED_SECONDS = 0.02, 0.1
#: seconds that `worst()` covers
WINDOW_SECONDS = 15
#: frames of the stack that are logged: the innermost, then those outside libraries
_FRAMES = 3
_LIBRARIES = tuple(
    dict.fromkeys(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib", "platlib"))
)

log = get_logger("astromesh.watchdog")
#: the innermost functions of a loop that waits: of asyncio, or what calls that of uvloop
_RESTING = frozenset({"select", "_run_once", "run_forever", "run"})
#: seconds without work after which a watch rests, and between two looks of its thread at a loop meanwhile
REST_SECONDS, LOOK_SECONDS = 1.0, 1.0


class Watchdog:
    """Watches one event loop; started in its thread.

    It measures while there is work. Where there is none, its thread looks only now and then whether the loop
    executes something, so that an idle server sleeps.

    Args:
        is_busy: whether there is work; called in the loop and in the thread of the watch.

    Attributes:
        lag: seconds by which the last tick was late.
        blocks: how often the loop was blocked for longer than `BLOCKED_SECONDS`.
        ticks: how often it measured.
    """

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        self.lag = 0.0
        self.blocks = self.ticks = 0
        self._is_busy = is_busy
        #: the start and the maximum lag of each of the last seconds in which it measured
        self._seconds: deque[tuple[float, float]] = deque(maxlen=WINDOW_SECONDS)
        self._seen = self._used = 0.0
        self._loop_thread = 0
        self._ending, self._awake = threading.Event(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to watch the running loop."""
        self._loop_thread = threading.get_ident()
        self._ending = threading.Event()  # an earlier thread has its own
        self._loop = loop = asyncio.get_running_loop()
        _watched[loop] = self
        self.touch()
        threading.Thread(target=self._watch, args=(loop,), name="astromesh-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()
        self._awake.set()
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def touch(self) -> None:
        """Tells, in the loop, that work begins: a watch that rests measures again."""
        self._used = time.monotonic()
        if self._timer is None and self._loop is not None:
            self._seen = self._used
            self._tick(self._loop, self._used)
            self._awake.set()

    def worst(self) -> float:
        """Returns the maximum lag in the last `WINDOW_SECONDS` seconds."""
        oldest = time.monotonic() - WINDOW_SECONDS
        return max((lag for since, lag in tuple(self._seconds) if since > oldest), default=0.0)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._seen = now = time.monotonic()
        self.lag = max(now - due, 0.0)
        self.ticks += 1
        if not self._seconds or now - self._seconds[-1][0] >= 1.0:
            self._seconds.append((now, self.lag))
        elif self.lag > self._seconds[-1][1]:
            self._seconds[-1] = self._seconds[-1][0], self.lag
        if self._is_busy():
            self._used = now
        if now - self._used > REST_SECONDS:
            self._rest()
        else:
            self._timer = loop.call_later(TICK_SECONDS, self._tick, loop, now + TICK_SECONDS)

    def _rest(self) -> None:
        self._timer = None
        self._awake.clear()

    # -- in the thread -------------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        where, ending = "", self._ending
        while not ending.is_set() and not loop.is_closed():
            if not self._awake.is_set():
                self._look(loop)
                continue
            ending.wait(max(self._seen + BLOCKED_SECONDS - time.monotonic(), TICK_SECONDS))
            if not loop.is_running():  # between two calls of `run_until_complete`
                self._seen = time.monotonic()
            late = time.monotonic() - self._seen - TICK_SECONDS
            if late > BLOCKED_SECONDS - TICK_SECONDS:  # a block may begin up to a tick before the late one
                where, blocked_for = self._place(where), late
            elif where:
                self.blocks += 1
                self._report(blocked_for, where)
                where = ""
        if loop.is_closed():
            self._timer = self._loop = None  # they refer to the loop, which may be collected now

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits until work begins, or until the loop executes something at a look."""
        if self._awake.wait(LOOK_SECONDS):
            return
        if self._is_busy() or self._place("somewhere"):
            with suppress(RuntimeError):  # closed meanwhile
                self._seen = time.monotonic()
                loop.call_soon_threadsafe(self.touch)
                self._awake.set()

    def _place(self, before: str) -> str:
        """Returns the current stack, empty if the loop rests; the last one before it continues is logged.

        No frame outlives this call: it would keep the variables of its function.
        """
        with _collecting_nothing():
            frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001
            return "" if _is_at_rest(frame) else _format_stack(frame) or before

    def _report(self, seconds: float, where: str) -> None:
        log.warning("event_loop_blocked", seconds=round(seconds, 3), where=where)


class RunWatch(Watchdog):
    """Watches the loop of a program without a server, while runs are active in it.

    Attributes:
        active: the runs, which count themselves.
    """

    def __init__(self) -> None:
        super().__init__(lambda: self.active > 0)
        self.active = 0
        self.is_watching = False

    def start(self) -> None:
        self.is_watching = True
        super().start()

    def _rest(self) -> None:
        self.is_watching = False
        self.stop()

    def _report(self, seconds: float, where: str) -> None:
        logging.getLogger("astromesh.graph").warning(
            "The event loop was held for %.2f s, and nothing else ran: %s", seconds, where
        )


_watched: WeakKeyDictionary[asyncio.AbstractEventLoop, Watchdog] = WeakKeyDictionary()
#: the newest watch: most programs have one loop
_newest: tuple[asyncio.AbstractEventLoop | None, RunWatch] = (None, RunWatch())


def run_watch() -> RunWatch:
    """Returns the watch of the running loop, which watches. Where a server has its own, it does nothing."""
    global _newest  # noqa: PLW0603 (one lookup less for each run)
    loop = asyncio.get_running_loop()
    known, watch = _newest
    if known is not loop:
        found = _watched.get(loop)
        watch = found if isinstance(found, RunWatch) else RunWatch()
        watch.is_watching = watch.is_watching or found is not None
        _newest = loop, watch
    if not watch.is_watching:
        watch.start()
    return watch


_looking = threading.Lock()


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Keeps garbage where it is while a thread looks at the stack of another one.

    Before Python 3.12 each frame that it looks at may start a collection, and a finalizer lets the other
    thread continue: its stack changes meanwhile, and Python crashes or waits for ever (CPython issue 106883).
    """
    with _looking:
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if is_enabled:
                gc.enable()


def _is_at_rest(frame: FrameType | None) -> bool:
    """Whether the loop executes nothing: it is late because this process gets no processor."""
    if frame is None:
        return False
    code = frame.f_code
    is_library = code.co_filename.startswith(_LIBRARIES)
    return code.co_name == "run_until_complete" or (is_library and code.co_name in _RESTING)


def _format_stack(frame: FrameType | None) -> str:
    """Returns the innermost function and those around it that are no library's.

    `traceback` would read the source of every function, and keep it.
    """
    places: list[str] = []
    while frame is not None and len(places) < _FRAMES:
        code = frame.f_code
        if not places or not code.co_filename.startswith((*_LIBRARIES, "<")):
            places.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(places)
