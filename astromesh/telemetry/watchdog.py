"""Watches the event loop: how late it is, and what held it up (reliability.md R12)."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from types import FrameType

import structlog

#: seconds between two looks, and from which on a block is named
TICK, BLOCKED = 0.05, 0.1
#: seconds that `worst()` looks back
WINDOW = 15
#: frames of the stack that are named: the innermost, then those of code that is no library's
_FRAMES = 3
_LIBRARIES = tuple(
    dict.fromkeys(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib", "platlib"))
)

log = structlog.get_logger("astromesh.watchdog")


class Watchdog:
    """Started in the thread of the event loop that it watches; one per loop.

    Attributes:
        lag: seconds by which the loop was late when it last looked.
        blocks: how often something held the loop for longer than `BLOCKED`.
    """

    def __init__(self) -> None:
        self.lag = 0.0
        self.blocks = 0
        #: the most of each of the last seconds, the one that goes on last, and when that began
        self._seconds: deque[float] = deque([0.0], maxlen=WINDOW)
        self._since = 0.0
        self._seen = 0.0
        self._loop_thread = 0
        self._ending = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to watch the running loop."""
        self._loop_thread = threading.get_ident()
        self._seen = time.monotonic()
        self._tick(asyncio.get_running_loop(), self._seen)
        threading.Thread(target=self._watch, name="astromesh-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()
        if self._timer is not None:
            self._timer.cancel()

    def worst(self) -> float:
        """The most seconds that the loop was late in the last `WINDOW` seconds, whoever asks how often."""
        return max(*self._seconds, self.lag)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._seen = now = time.monotonic()
        self.lag = max(now - due, 0.0)
        if now - self._since >= 1.0:
            self._seconds.append(self.lag)
            self._since = now
        elif self.lag > self._seconds[-1]:
            self._seconds[-1] = self.lag
        self._timer = loop.call_later(TICK, self._tick, loop, now + TICK)

    # -- in the thread -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        where = ""
        while not self._ending.wait(TICK):
            late = time.monotonic() - self._seen - TICK
            if late > BLOCKED:
                # what it is doing now; the last look before it goes on is the one that is named
                where = _where(sys._current_frames().get(self._loop_thread)) or where  # noqa: SLF001
                held = late
            elif where:
                self.blocks += 1
                log.warning("event_loop_blocked", seconds=round(held, 3), where=where)
                where = ""


def _where(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    inner, *outer = reversed(traceback.extract_stack(frame))
    ours = [f for f in outer if not f.filename.startswith((*_LIBRARIES, "<"))]
    return " < ".join(f"{f.filename}:{f.lineno} {f.name}" for f in (inner, *ours[: _FRAMES - 1]))
