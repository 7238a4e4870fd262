"""Watches the event loop: how late it is, and what held it up (reliability.md R12)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from types import FrameType

import structlog

#: seconds between two looks, and from which on a block is named
TICK, BLOCKED = 0.05, 0.1
#: frames of the stack that are named, innermost last
_FRAMES = 3

log = structlog.get_logger("astromesh.watchdog")


class Watchdog:
    """Started in the thread of the event loop that it watches; one per loop.

    Attributes:
        lag: seconds by which the loop was late when it last looked.
        most: the most since somebody asked with `worst()`.
        blocks: how often something held the loop for longer than `BLOCKED`.
    """

    def __init__(self) -> None:
        self.lag = self.most = 0.0
        self.blocks = 0
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
        """The most seconds that the loop was late since this was last asked."""
        most, self.most = max(self.most, self.lag), 0.0
        return most

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._seen = now = time.monotonic()
        self.lag = max(now - due, 0.0)
        self.most = max(self.most, self.lag)
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
    stack = traceback.extract_stack(frame)[-_FRAMES:]
    return " < ".join(f"{f.filename}:{f.lineno} {f.name}" for f in reversed(stack))
