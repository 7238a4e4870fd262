"""JSON for clients. Never fails: a frame that cannot be said would end a stream, or a socket, for nothing."""

from __future__ import annotations

import json
from typing import Any

import orjson


def encoded(value: Any) -> bytes:
    """The value as JSON; what JSON has no form for becomes text, half a surrogate pair an escape."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:  # integers beyond 64 bits, half surrogate pairs, circles
        return _slowly(value)


def _slowly(value: Any) -> bytes:
    try:
        return json.dumps(value, default=str).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(
            {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else str(value)
        ).encode()
