"""Calls of plain functions in the event loop, and the warning about those that hold it for too long.

Conditions, transforms, pre- and postprocessors, guards, hooks and inline functions run in the loop, where
nothing else runs meanwhile. The server also watches the loop as a whole: see `astromesh.telemetry.watchdog`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

#: Seconds. A function that holds the loop longer is named in a warning.
HELD_SECONDS = 0.1
log = logging.getLogger("astromesh.graph")


def call_inline(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function and returns its value, which may be awaitable.

    Args:
        what: What the function is, for the warning: `The guard`.
    """
    started = perf_counter()
    try:
        return function(*arguments)
    finally:
        if (seconds := perf_counter() - started) > HELD_SECONDS:
            warn_of_hold(what, function, seconds)


def warn_of_hold(what: str, function: Callable[..., Any], seconds: float) -> None:
    """Warns that a function held the event loop."""
    module, name = (getattr(function, key, "") for key in ("__module__", "__qualname__"))
    log.warning(
        "%s %s held the event loop for %.2f s, and nothing else ran. "
        "A node that is a plain function may block: it runs in a thread.",
        what,
        f"{module}.{name}" if name else repr(function),
        seconds,
    )
