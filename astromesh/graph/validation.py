"""Validation of keywords and of function signatures when a node or an engine is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from math import inf, isfinite
from typing import Any

from astromesh.graph.runner import call_inline
from astromesh.graph.state import RESERVED_KEYS

ROUTINGS = ("", "edges_only")
ON_NODE_ERROR = ("continue", "stop")


def check_name(name: Any) -> None:
    """Raises TypeError or ValueError if a value cannot be the name of a node."""
    if not isinstance(name, str):
        raise TypeError(f"A node's name must be a text, not {name!r}.")
    if not name or "/" in name:
        raise ValueError(f"A node's name must not be empty nor contain '/': {name!r}.")


def check_keywords(node: str, keywords: Mapping[str, Any]) -> None:
    """Checks the keywords of a node.

    Raises:
        TypeError, ValueError: A keyword is invalid. The message begins with `Node NAME: KEY`.
    """
    for key, (test, what, error) in KEYWORD_RULES.items():
        if key in keywords and not test(keywords[key]):
            raise error(f"Node {node!r}: {key} {what}, not {keywords[key]!r}.")


def check_int(owner: str, key: str, value: Any, least: int | None = 1) -> None:
    """Raises TypeError or ValueError if a value is not an integer of at least `least`."""
    if not _is_int(value):
        raise TypeError(f"{owner}: {key} must be a whole number, not {value!r}.")
    if least is not None and value < least:
        raise ValueError(f"{owner}: {key} must be at least {least}, not {value}.")


def check_seconds(owner: str, key: str, value: Any) -> None:
    """Raises ValueError if a value is not a positive number of seconds."""
    if not _is_seconds(value):
        raise ValueError(f"{owner}: {key} must be more than 0 s, not {value!r}.")


def check_number(owner: str, key: str, value: Any, least: float) -> None:
    """Raises ValueError if a value is not a finite number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < inf:
        raise ValueError(f"{owner}: {key} must be a number of at least {least:g}, not {value!r}.")


def check_key(owner: str, key: str, value: Any) -> None:
    """Raises ValueError if a value is not a name that a node may write to."""
    if not _is_context_key(value) or not value:
        raise ValueError(f"{owner}: {key} {_CONTEXT_KEY_RULE}, not {value!r}.")


def check_reducers(owner: str, reducers: Any) -> None:
    """Raises TypeError or ValueError if a value does not map context keys to functions of two values."""
    if not isinstance(reducers, Mapping):
        raise TypeError(f"{owner}: reducers must be a mapping of keys to functions, not {reducers!r}.")
    for key, function in reducers.items():
        check_key(owner, "a key of reducers", key)
        if not callable(function):
            raise TypeError(f"{owner}: the reducer of {key!r} must be a function, not {function!r}.")
        if not _takes_two(function):
            raise TypeError(f"{owner}: the reducer of {key!r} must take (value, written).")


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except ValueError:  # a built-in without a signature
        return True
    except TypeError:
        return False
    return not inspect.iscoroutinefunction(function)


_CONTEXT_KEY_RULE = "must be a context key that is not reserved"


def _is_context_key(value: Any) -> bool:
    return isinstance(value, str) and value not in RESERVED_KEYS


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_join(value: Any) -> bool:
    return value in ("all", "any") if isinstance(value, str) else _is_int(value) and value >= 1


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and isfinite(value) and value > 0


def _is_several(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _are_flags(value: Any) -> bool:
    return _is_several(value) and all(isinstance(flag, Hashable) for flag in value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return _is_several(value) and all(map(_is_name, value))


def _are_targets(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_name, value.values()))


def _is_mapping_of_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_name, value))


def _are_guards(value: Any) -> bool:
    return _is_several(value) and all(callable(guard) or hasattr(guard, "verdict") for guard in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_none_or_has(*methods: str) -> Callable[[Any], bool]:
    """Returns a check for objects with these methods. A text is the name of such an object."""
    return lambda value: (
        value is None or isinstance(value, str) or all(hasattr(value, method) for method in methods)
    )


#: By keyword: whether a value is valid, the error text, and the error type.
KEYWORD_RULES: Mapping[str, tuple[Callable[[Any], bool], str, type[Exception]]] = {
    "instructions": (_is_text, "must be a text", TypeError),
    "description": (_is_text, "must be a text", TypeError),
    "strategy": (_is_none_or_has("wrap", "parse"), "must be a strategy, or the name of one", TypeError),
    "perspective": (_is_none_or_has("apply"), "must be a perspective, or the name of one", TypeError),
    "model_override": (
        lambda value: callable(value) or _is_none_or_has("complete")(value),
        "must be a model, 'provider:name', an async function, or the name of a role",
        TypeError,
    ),
    **dict.fromkeys(
        ("inject_tools", "tool_loop", "is_entry", "is_terminal", "pure"),
        (_is_bool, "must be true or false", TypeError),
    ),
    "flags": (_are_flags, "takes a list or set of hashable values", TypeError),
    "guards": (_are_guards, "takes a list of functions and Guards", TypeError),
    "blocks": (_is_several, "takes a list", TypeError),
    "tools": (_is_several, "takes a list", TypeError),
    "input_keys": (_are_texts, "takes a list of names", TypeError),
    "routes": (_are_texts, "takes a list of names of nodes", TypeError),
    "transitions": (_are_targets, "takes a mapping to names of nodes", TypeError),
    "default_next": (_is_text, "must be the name of a node", TypeError),
    "inherit_context_from": (_is_text, "must be the name of a node", TypeError),
    "output_key": (_is_context_key, _CONTEXT_KEY_RULE, ValueError),
    "routing": (lambda value: value in ROUTINGS, "must be 'edges_only' or ''", ValueError),
    "parameters": (_is_mapping_of_names, "takes a mapping of names to values", TypeError),
    "join": (_is_join, "must be 'all', 'any' or a number of branches", ValueError),
    "preprocessor": (lambda value: value is None or callable(value), "must be a function", TypeError),
    "postprocessor": (lambda value: value is None or callable(value), "must be a function", TypeError),
    "timeout": (
        lambda value: value is None or _is_seconds(value),
        "must be more than 0 s", ValueError,
    ),
    "max_iterations": (
        lambda value: value is None or (_is_int(value) and value >= 1),
        "must be a whole number of at least 1", ValueError,
    ),
}  # fmt: skip


# -- how many arguments a function takes: checked once, when a graph is built ------------------------------


def positional_arity(function: Callable[..., Any], owner: str, *, most: int) -> int:
    """Returns how many of `most` positional arguments a function needs.

    Arguments with a default are not counted.

    Raises:
        TypeError: It needs none, or more than `most`. The message begins with `owner`.
    """
    if not callable(function):
        raise TypeError(f"{owner}: {function!r} is not a function.")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in positional)
    if not positional or needed > most:
        raise TypeError(f"{owner}: {function!r} must take 1 to {most} positional arguments, not {needed}.")
    return max(needed, 1)


class Processor:
    """A pre- or postprocessor, sync or async, called with as many arguments as it takes.

    Args:
        function: Takes at least one argument.
        what: Its name in error messages.
        most: The number of arguments that it may take.

    Raises:
        TypeError: It takes none, or more.
    """

    __slots__ = ("arity", "function", "what")

    def __init__(self, function: Callable[..., Any], what: str, most: int) -> None:
        self.function, self.what = function, what
        self.arity = positional_arity(function, what, most=most)

    async def __call__(self, *arguments: Any) -> Any:
        value = call_inline(self.what, self.function, *arguments[: self.arity])
        return await value if inspect.isawaitable(value) else value


def preprocessor(function: Callable[..., Any] | None) -> Processor | None:
    """Returns the processor of `(state[, config])`, or None."""
    return Processor(function, "Preprocessor", 2) if function else None


def postprocessor(function: Callable[..., Any] | None) -> Processor | None:
    """Returns the processor of `(output[, state[, config]])`, or None."""
    return Processor(function, "Postprocessor", 3) if function else None
