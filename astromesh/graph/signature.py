"""How many arguments a function takes, seen once, when a graph is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def positional_arguments(function: Callable[..., Any], owner: str, *, most: int) -> int:
    """How many of `most` positional arguments a function needs; those with a default keep it.

    Raises:
        TypeError: none, or more than that; the message begins with `owner`.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built-ins without a signature take what they are given
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in positional)
    if not positional or needed > most:
        raise TypeError(f"{owner}: {function!r} must take 1 to {most} positional arguments, not {needed}.")
    return max(needed, 1)
