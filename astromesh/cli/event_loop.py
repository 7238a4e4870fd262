"""The event loop of the commands that run foreign code for long."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop

from astromesh.errors import is_failure
from astromesh.logs import get_logger

log = get_logger("astromesh.server")


class EventLoop(uvloop.Loop):
    """An event loop that a task of foreign code cannot end.

    A `SystemExit` in any task ends an event loop of asyncio. What an operation, tool or node raises is its
    own failure. Only what a task raises that such code has started arrives here.
    """

    def run_until_complete(self, future: Any) -> Any:
        """See `asyncio.AbstractEventLoop`. A `SystemExit` of the awaited task itself ends the loop."""
        awaited = asyncio.ensure_future(future, loop=self)
        while True:
            try:
                return super().run_until_complete(awaited)
            except (SystemExit, KeyboardInterrupt) as error:
                if awaited.done() or not is_failure(error):
                    raise
                log.exception("task_exited")
