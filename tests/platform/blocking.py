"""Finds calls that block the event loop.

While a detector watches, a known blocking call made by a thread whose event loop is running is recorded:
`time.sleep`, `os.system`, opening a file, `sqlite3.connect` and every SQLite statement, a connect on a
blocking socket, a name lookup. It looks at what is called and never at a clock, so it is as sure on a slow
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import sqlite3.dbapi2
import sys
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

CALLS = frozenset(
    {"open", "os.system", "socket.connect", "socket.getaddrinfo", "sqlite3.connect", "time.sleep"}
)
# What Python itself opens: modules, and source lines for tracebacks and warnings.
EXEMPT_MODULES = ("importlib.", "linecache", "tokenize", "zipimport")
STACK_LINES = 6


class BlockingDetector:
    """Watches between `start` and `stop`.

    Attributes:
        violations: one text for each call found: what, and where.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._watching = False

    def start(self) -> None:
        _watchers.add(self)
        self._watching = True

    def stop(self) -> None:
        self._watching = False
        _watchers.discard(self)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For what the test itself does in the loop's thread, such as reading a file it compares with."""
        was, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = was

    def found(self, what: str, frame: FrameType) -> None:
        if self._watching:
            stack = traceback.format_list(traceback.extract_stack(frame, limit=STACK_LINES))
            self.violations.append(f"{what}\n{''.join(stack)}")


_watchers: set[BlockingDetector] = set()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watchers and event in CALLS and _blocks(event, arguments):
        _record(f"{event}({', '.join(repr(argument)[:80] for argument in arguments)})")


def _statement(statement: str) -> None:
    _record(f"sqlite3 statement: {statement[:80]}")


def _blocks(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "socket.connect":
        return bool(arguments[0].gettimeout() != 0.0)
    if event == "open":
        return isinstance(arguments[0], str | bytes)  # not a descriptor that is open already
    return True


def _record(what: str) -> None:
    if not _watchers or asyncio._get_running_loop() is None:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    if frame is None or _exempt(frame):
        return
    watchers = list(_watchers)
    _watchers.clear()  # what recording itself opens is not looked at
    try:
        for watcher in watchers:
            watcher.found(what, frame)
    finally:
        _watchers.update(watchers)


def _exempt(frame: FrameType | None) -> bool:
    while frame:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(EXEMPT_MODULES) or frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def install() -> None:
    """Once per process, before the code under test is imported.

    No Python audits SQLite's statements, and only those from 3.13 on audit `time.sleep`; hence the wrappers.
    """
    sys.addaudithook(_audit)
    sleep, connect = time.sleep, sqlite3.connect

    @functools.wraps(sleep)
    def watched_sleep(seconds: float) -> None:
        _record(f"time.sleep({seconds})")
        sleep(seconds)

    @functools.wraps(connect)
    def watched_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(_statement)
        return connection

    if sys.version_info < (3, 13):
        time.sleep = watched_sleep  # type: ignore[assignment]
    sqlite3.connect = sqlite3.dbapi2.connect = watched_connect  # type: ignore[assignment]
