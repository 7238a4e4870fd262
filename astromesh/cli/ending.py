"""The end of a process whose work is done, whatever other people's code still does in it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress

import structlog

#: seconds after everything was closed in order
LAST = 5.0

log = structlog.get_logger("astromesh.server")


def end_within(seconds: float = LAST) -> None:
    """Ends the process with 0 if it has not ended by then.

    An event loop waits at its end for the threads of its default executor (`asyncio.to_thread`), and Python
    for those of every executor: one that hangs in a tool would keep the process for ever.
    """
    last = threading.Timer(seconds, _end, (seconds,))
    last.daemon = True
    last.start()


def _end(seconds: float) -> None:
    names = sorted(t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
    log.warning("ended_by_force", after_seconds=seconds, threads=names)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)
