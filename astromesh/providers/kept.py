"""What a model wants to have back with its own tool calls: signed thoughts, at Anthropic and at Gemini.

It goes with the call (`ToolCall.kept`), through the records of durable runs, too. Other models get nothing.
"""

from __future__ import annotations

from typing import Any

import orjson

from astromesh.types import ToolCall


def keep(model: str, value: Any) -> str:
    """For `ToolCall.kept`; `model` is whose it is."""
    return orjson.dumps([model, value]).decode()


def kept(call: ToolCall, model: str) -> Any:
    """What this model has kept with the call, or None."""
    if not call.kept:
        return None
    owner, value = orjson.loads(call.kept)
    return value if owner == model else None
