"""JSON in a model's text: fenced, surrounded by prose, with braces inside strings."""

from __future__ import annotations

from json import JSONDecodeError, JSONDecoder
from typing import Any

_DECODER = JSONDecoder()
#: opening braces that are tried; a text with more is no answer but an attack on the parser's time
_TRIES = 64


def extract_object(text: str, key: str = "") -> dict[str, Any] | None:
    """The first JSON object in a text, or the first that has a key.

    The decoder reads from each opening brace on: strings with braces, escapes and nesting cannot mislead it.

    Args:
        text: a model's answer.
        key: what the object must have, or empty.
    """
    start = text.find("{")
    for _ in range(_TRIES):
        if start < 0:
            return None
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (JSONDecodeError, RecursionError):
            end = start + 1
        else:
            if not key or key in found:
                return found  # type: ignore[no-any-return]  # what starts with a brace is an object
        start = text.find("{", end)
    return None


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


def extract_value(text: str) -> Any:
    """The whole text as JSON, or else the first object in it.

    Raises:
        ValueError: there is no JSON in it.
    """
    try:
        return _DECODER.decode(text.strip())
    except (JSONDecodeError, RecursionError):
        found = extract_object(text)
    if found is None:
        raise ValueError("There is no JSON in the text.")
    return found
