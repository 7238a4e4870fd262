"""JSON values: what Tasks carry. Anything else is refused at once (workflow.md E61)."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

_PLAIN = (str, int, float, bool, type(None))


class NotJson(ValueError):
    """A value that has no JSON form."""


def canonical(value: Any) -> Any:
    """The value as JSON knows it, shared with nobody: tuples are lists, and what is none is refused.

    Raises:
        NotJson: it has no JSON form; the message says what.
    """
    if type(value) in (str, bool, type(None)):
        return value
    try:
        return orjson.loads(orjson.dumps(value))
    except (orjson.JSONEncodeError, TypeError) as error:
        raise NotJson(f"is no JSON value: {error}") from error


def private(value: Any) -> Any:
    """A copy that its receiver may change; of a value that is canonical already."""
    return value if type(value) in _PLAIN else orjson.loads(orjson.dumps(value))


def digest(value: Any) -> str:
    """SHA-256 of the value in canonical JSON (sorted keys)."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
