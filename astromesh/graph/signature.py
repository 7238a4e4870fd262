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
    if not callable(function):
        raise TypeError(f"{owner}: {function!r} is no function.")
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


class Processor:
    """A pre- or postprocessor, sync or async, given as many arguments as it takes.

    Args:
        function: of at least one argument.
        what: for messages.
        most: arguments that it may take.

    Raises:
        TypeError: it takes none, or more.
    """

    __slots__ = ("arity", "function")

    def __init__(self, function: Callable[..., Any], what: str, most: int) -> None:
        self.function = function
        self.arity = positional_arguments(function, what, most=most)

    async def __call__(self, *arguments: Any) -> Any:
        value = self.function(*arguments[: self.arity])
        return await value if inspect.isawaitable(value) else value


def preprocessor(function: Callable[..., Any] | None) -> Processor | None:
    """Of `(state[, config])`, where there is one."""
    return Processor(function, "Preprocessor", 2) if function else None


def postprocessor(function: Callable[..., Any] | None) -> Processor | None:
    """Of `(output[, state[, config]])`, where there is one."""
    return Processor(function, "Postprocessor", 3) if function else None
