"""Values as canonical JSON: equal values, however their keys are ordered, have one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from hashlib import blake2b
from typing import Any

import orjson

_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)

#: what subclasses of these hold is what counts
_BASES: tuple[type[Any], ...] = (list, tuple, str, int)


def canonical(value: Any) -> bytes:
    """A value as JSON with sorted keys; records (dataclasses, pydantic models, dates) keep their type's name.

    Raises:
        TypeError: something in it has no such form; the message names its type.
    """
    return orjson.dumps(value, _plain, _OPTIONS)


def digest(value: Any) -> str:
    """A short fingerprint of a value, the same in every process; empty where it has no canonical form."""
    try:
        return blake2b(canonical(value), digest_size=8).hexdigest()
    except (TypeError, RecursionError):
        return ""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    for base in _BASES:
        if isinstance(value, base) and not isinstance(value, Enum):
            return base(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [_name(value), {f.name: getattr(value, f.name) for f in fields(value) if f.compare}]
    if hasattr(value, "model_dump"):
        return [_name(value), value.model_dump()]
    if isinstance(value, date | datetime | time):
        return [_name(value), value.isoformat()]
    raise TypeError(f"{_name(value)} has no canonical JSON")


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
