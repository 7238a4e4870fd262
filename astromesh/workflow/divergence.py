"""Where a replay differs from its recording: the first place, with both values as callers may see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from astromesh.logs import redact_secrets

#: characters of a value that are shown, and those of a text before the place where it differs
_SHOWN, _BEFORE = 500, 40


class Difference(NamedTuple):
    """The first difference of two JSON values.

    Args:
        place: its steps, as `.findings[2].risk`; empty: the whole value.
        recorded, present: both values there as JSON, without secrets and shortened; empty: none.
    """

    place: str
    recorded: str
    present: str


class _Absent:
    """No value: the other side has one, or the recording is of a version that stored its hash alone."""


ABSENT = _Absent()


def first_difference(recorded: Any, present: Any) -> Difference:
    """Returns the first place where two JSON values differ."""
    place = ""
    while (step := _differing_step(recorded, present)) is not None:
        mark, recorded, present = step
        place += mark
    if isinstance(recorded, str) and isinstance(present, str):
        pairs = enumerate(zip(recorded, present, strict=False))
        same = next((n for n, (old, new) in pairs if old != new), min(len(recorded), len(present)))
        start = max(same - _BEFORE, 0)
        recorded, present = recorded[start:], present[start:]
    return Difference(place, shown(recorded), shown(present))


def _differing_step(recorded: Any, present: Any) -> tuple[str, Any, Any] | None:
    """Returns the first key or index where two objects or lists differ; None for other values."""
    return next((pair for pair in _pairs(recorded, present) if _unlike(pair[1], pair[2])), None)


def _pairs(recorded: Any, present: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(recorded, dict) and isinstance(present, dict):
        for key in {**recorded, **present}:
            yield f".{key}", recorded.get(key, ABSENT), present.get(key, ABSENT)
    elif isinstance(recorded, list) and isinstance(present, list):
        for index in range(max(len(recorded), len(present))):
            yield f"[{index}]", _at(recorded, index), _at(present, index)


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else ABSENT


def _unlike(one: Any, other: Any) -> bool:
    """Whether two values differ in JSON: 1 and 1.0 and true are three values."""
    return type(one) is not type(other) or _json(one) != _json(other)


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def shown(value: Any) -> str:
    """Returns a value as callers may see it."""
    if value is ABSENT:
        return ""
    text = redact_secrets(_json(value).decode())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
