"""Whether a result that somebody else made is one: a table of fields and what they may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, get_args

from astromesh.graph.records import Mutation, NodeResult, StopReason
from astromesh.types import Message, ToolCall, Usage

_STOPS = ("", *get_args(StopReason))


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in (tuple, list) and all(isinstance(one, kind) for one in value)


def _is(kind: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


#: by field: whether a value will do, and what it should be
_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("node_name", _is(str), "a text"),
    ("next_node", _is(str), "the name of a node"),
    ("transition_reason", _is(str), "a text"),
    ("tool_calls", _all(ToolCall), "a list of ToolCall"),
    ("messages_added", _all(Message), "a list of Message"),
    ("guards_passed", _all(str), "a list of names"),
    ("guards_failed", _all(str), "a list of names"),
    ("graph_mutations", _all(Mutation), "a list of Mutation"),
    ("error", _is(str), "a text, empty where it succeeded"),
    ("usage", _is(Usage), "a Usage"),
    ("duration_ms", _is(int | float), "a number"),
    (
        "stop_reason",
        lambda value: isinstance(value, str) and value in _STOPS,
        f"one of {', '.join(_STOPS[1:])}",
    ),
    ("is_answer", _is(bool), "True or False"),
    ("exception", _is(BaseException | None), "an exception or None"),
    ("skipped", _is(bool), "True or False"),
)
_values = attrgetter(*(field for field, _, _ in _FIELDS[1:]))
_DEFAULTS = _values(NodeResult())
_KNOWN = frozenset(field.name for field in fields(NodeResult))


def fault(result: NodeResult) -> str | None:
    """Which field of a result is odd and what it should be, or None."""
    try:
        if _values(result) == _DEFAULTS and type(result.node_name) is str and vars(result).keys() <= _KNOWN:
            return None
    except Exception:  # noqa: BLE001, S110 (comparing runs anybody's code; the table tells what is odd)
        pass
    for unknown in vars(result).keys() - _KNOWN if type(result) is NodeResult else ():
        return f"{unknown} is no field of a result"
    for field, will_do, wanted in _FIELDS:
        value = getattr(result, field, None)  # a class of the user's own may have left it out
        if not will_do(value):
            shown = f"{value!r:.80}" if isinstance(value, str) else type(value).__name__
            return f"{field} must be {wanted}, not {shown}"
    return None
