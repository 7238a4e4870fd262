"""Keywords of nodes that are of a wrong kind: a slip of the pen must not switch a protection off."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from math import isfinite
from typing import Any

from astromesh.graph.own_keys import OWN_KEYS

ROUTINGS = ("", "edges_only")


def check_name(name: Any) -> None:
    """Raises: TypeError, ValueError: it can be no node's name."""
    if not isinstance(name, str):
        raise TypeError(f"A node's name must be a text, not {name!r}.")
    if not name or "/" in name:
        raise ValueError(f"A node's name must not be empty nor contain '/': {name!r}.")


def check(node: str, keywords: Mapping[str, Any]) -> None:
    """Looks at the keywords of a node.

    Raises:
        TypeError, ValueError: one is wrong; the message begins with `Node NAME: KEY`.
    """
    for key, (test, what, error) in RULES.items():
        if key in keywords and not test(keywords[key]):
            raise error(f"Node {node!r}: {key} {what}, not {keywords[key]!r}.")


def check_whole(owner: str, key: str, value: Any, least: int | None = 1) -> None:
    """Raises: TypeError, ValueError: the value of an argument is no whole number of at least so much."""
    if not _is_whole(value):
        raise TypeError(f"{owner}: {key} must be a whole number, not {value!r}.")
    if least is not None and value < least:
        raise ValueError(f"{owner}: {key} must be at least {least}, not {value}.")


def check_seconds(owner: str, key: str, value: Any) -> None:
    """Raises: ValueError: the value of an argument is no time."""
    if not _is_time(value):
        raise ValueError(f"{owner}: {key} must be more than 0 s, not {value!r}.")


def check_key(owner: str, key: str, value: Any) -> None:
    """Raises: ValueError: the value of an argument is no name that a node may write to."""
    if not _is_free(value) or not value:
        raise ValueError(f"{owner}: {key} {_FREE}, not {value!r}.")


_FREE = "must be a name in the context that is not the engine's own"


def _is_free(value: Any) -> bool:
    return isinstance(value, str) and value not in OWN_KEYS


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and isfinite(value) and value > 0


def _are_flags(value: Any) -> bool:
    return (
        not isinstance(value, str)
        and isinstance(value, Iterable)
        and all(isinstance(flag, Hashable) for flag in value)
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return not isinstance(value, str) and isinstance(value, Iterable) and all(map(_is_name, value))


def _are_targets(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_name, value.values()))


def _are_guards(value: Any) -> bool:
    is_several = not isinstance(value, str) and isinstance(value, Iterable)
    return is_several and all(callable(guard) or hasattr(guard, "verdict") for guard in value)


def _is_several(value: Any) -> bool:
    return not isinstance(value, str) and isinstance(value, Iterable)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _has(*methods: str) -> Callable[[Any], bool]:
    """A text is the name of one that has."""
    return lambda value: (
        value is None or isinstance(value, str) or all(hasattr(value, method) for method in methods)
    )


#: by keyword: whether a value will do, the words for one that will not, and the error
RULES: Mapping[str, tuple[Callable[[Any], bool], str, type[Exception]]] = {
    "instructions": (_is_text, "must be a text", TypeError),
    "description": (_is_text, "must be a text", TypeError),
    "strategy": (_has("wrap", "parse"), "must be a strategy, or the name of one", TypeError),
    "perspective": (_has("apply"), "must be a perspective, or the name of one", TypeError),
    "model_override": (_has("complete"), "must be a model, or the name of a role", TypeError),
    "inject_tools": (_is_bool, "must be true or false", TypeError),
    "tool_loop": (_is_bool, "must be true or false", TypeError),
    "is_entry": (_is_bool, "must be true or false", TypeError),
    "is_terminal": (_is_bool, "must be true or false", TypeError),
    "pure": (_is_bool, "must be true or false", TypeError),
    "flags": (_are_flags, "takes a list or set of hashable values", TypeError),
    "guards": (_are_guards, "takes a list of functions and Guards", TypeError),
    "blocks": (_is_several, "takes a list", TypeError),
    "tools": (_is_several, "takes a list", TypeError),
    "input_keys": (_are_texts, "takes a list of names", TypeError),
    "routes": (_are_texts, "takes a list of names of nodes", TypeError),
    "transitions": (_are_targets, "takes a mapping to names of nodes", TypeError),
    "default_next": (_is_text, "must be the name of a node", TypeError),
    "inherit_context_from": (_is_text, "must be the name of a node", TypeError),
    "output_key": (_is_free, _FREE, ValueError),
    "routing": (lambda value: value in ROUTINGS, "must be 'edges_only' or ''", ValueError),
    "preprocessor": (lambda value: value is None or callable(value), "must be a function", TypeError),
    "postprocessor": (lambda value: value is None or callable(value), "must be a function", TypeError),
    "timeout": (
        lambda value: value is None or _is_time(value),
        "must be more than 0 s", ValueError,
    ),
    "max_iterations": (
        lambda value: value is None or (_is_whole(value) and value >= 1),
        "must be a whole number of at least 1", ValueError,
    ),
}  # fmt: skip
