"""JSON in a model's text: fenced, surrounded by prose, with braces inside strings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

_DECODER = JSONDecoder()
#: places that are tried; a text with more is no answer but an attack on the parser's time
_TRIES = 64
_OBJECTS = re.compile(r"\{")
_VALUES = re.compile(r"[{\[]")


def extract_object(text: str, key: str = "") -> dict[str, Any] | None:
    """The first JSON object in a text, or the first that has a key.

    The decoder reads from each opening brace on: strings with braces, escapes and nesting cannot mislead it.

    Args:
        text: a model's answer.
        key: what the object must have, or empty.
    """
    return next((found for found in _found(text, _OBJECTS) if not key or key in found), None)


def extract_values(text: str) -> Iterator[Any]:
    """The whole text as JSON, then every object and array in it that is not part of an earlier one."""
    try:
        yield _DECODER.decode(text.strip())
    except (JSONDecodeError, RecursionError):
        yield from _found(text, _VALUES)


def whole_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, in a fence or not; None where it is anything more or else."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```"):
        body = body.strip("`").removeprefix("json").strip()
    if not body.startswith("{"):
        return None
    try:
        return _DECODER.decode(body)  # type: ignore[no-any-return]  # what starts with a brace is an object
    except (JSONDecodeError, RecursionError):
        return None


def placed_objects(text: str) -> Iterator[tuple[int, int, Any]]:
    """Start, end and value of every JSON object in a text that is not part of an earlier one."""
    return _placed(text, _OBJECTS)


def _found(text: str, opening: re.Pattern[str]) -> Iterator[Any]:
    return (value for _, _, value in _placed(text, opening))


def _placed(text: str, opening: re.Pattern[str]) -> Iterator[tuple[int, int, Any]]:
    end = 0
    for _ in range(_TRIES):
        start = opening.search(text, end)
        if start is None:
            return
        try:
            found, end = _DECODER.raw_decode(text, start.start())
        except (JSONDecodeError, RecursionError):
            end = start.end()
        else:
            yield start.start(), end, found
