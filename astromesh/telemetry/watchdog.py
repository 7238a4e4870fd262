"""Measures the lag of event loops and names what blocks them: in servers, and in programs that run graphs."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
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
#: seconds without a run after which `RunWatch` rests
_REST_SECONDS = 1.0


class Watchdog:
    """Watches one event loop; started in its thread.

    Attributes:
        lag: seconds by which the last tick was late.
        blocks: how often the loop was blocked for longer than `BLOCKED_SECONDS`.
    """

    def __init__(self) -> None:
        self.lag = 0.0
        self.blocks = 0
        #: maximum lag of each of the last seconds, the current second last, and its start
        self._seconds: deque[float] = deque([0.0], maxlen=WINDOW_SECONDS)
        self._since = 0.0
        self._seen = 0.0
        self._loop_thread = 0
        self._ending = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to watch the running loop."""
        self._loop_thread = threading.get_ident()
        self._seen = time.monotonic()
        loop = asyncio.get_running_loop()
        _watched[loop] = self
        self._tick(loop, self._seen)
        threading.Thread(target=self._watch, args=(loop,), name="astromesh-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()
        if self._timer is not None:
            self._timer.cancel()

    def worst(self) -> float:
        """Returns the maximum lag in the last `WINDOW_SECONDS` seconds."""
        return max(*self._seconds, self.lag)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._seen = now = time.monotonic()
        self.lag = max(now - due, 0.0)
        if now - self._since >= 1.0:
            self._seconds.append(self.lag)
            self._since = now
        elif self.lag > self._seconds[-1]:
            self._seconds[-1] = self.lag
        self._timer = loop.call_later(TICK_SECONDS, self._tick, loop, now + TICK_SECONDS)

    # -- in the thread -------------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        where, ending = "", self._ending
        while not ending.wait(TICK_SECONDS) and not loop.is_closed():
            if not loop.is_running():  # between two calls of `run_until_complete`
                self._seen = time.monotonic()
            late = time.monotonic() - self._seen - TICK_SECONDS
            if late > BLOCKED_SECONDS - TICK_SECONDS:  # a block may begin up to a tick before the late one
                # the current stack; the last one before the loop continues is logged
                frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001
                where = "" if _is_at_rest(frame) else _format_stack(frame) or where
                blocked_for = late
            elif where:
                self.blocks += 1
                self._report(blocked_for, where)
                where = ""
        if loop.is_closed():
            self._timer = None  # it refers to the loop, which may be collected now

    def _report(self, seconds: float, where: str) -> None:
        log.warning("event_loop_blocked", seconds=round(seconds, 3), where=where)


class RunWatch(Watchdog):
    """Watches the loop of a program without a server, while runs are active in it.

    Attributes:
        active: the runs, which count themselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.active = 0
        self._used = 0.0
        self.is_watching = False

    def start(self) -> None:
        self.is_watching, self._used = True, time.monotonic()
        self._ending = threading.Event()  # an earlier thread has its own
        super().start()

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        super()._tick(loop, due)
        if self.active:
            self._used = self._seen
        elif self._seen - self._used > _REST_SECONDS:
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


def _is_at_rest(frame: FrameType | None) -> bool:
    """Whether the loop executes nothing: it is late because this process gets no processor."""
    if frame is None:
        return False
    code = frame.f_code
    is_library = code.co_filename.startswith(_LIBRARIES)
    return code.co_name == "run_until_complete" or (is_library and code.co_name in _RESTING)


def _format_stack(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    inner, *outer = reversed(traceback.extract_stack(frame))
    ours = [f for f in outer if not f.filename.startswith((*_LIBRARIES, "<"))]
    return " < ".join(f"{f.filename}:{f.lineno} {f.name}" for f in (inner, *ours[: _FRAMES - 1]))
