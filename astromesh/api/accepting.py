"""What an `Accept` header asks for (RFC 9110, 12.5.1)."""

from __future__ import annotations

from contextlib import suppress

STREAM = "text/event-stream"
_JSON = "application/json"


def wants_stream(accept: str) -> bool:
    """Whether server-sent events are asked for by name, and JSON is not preferred to them."""
    if accept == STREAM:
        return True
    asked = accept.lower()
    if STREAM not in asked:
        return False
    ranges = dict(map(_range, asked.split(",")))
    stream = ranges.get(STREAM, 0.0)
    json = next((ranges[name] for name in (_JSON, "application/*", "*/*") if name in ranges), 0.0)
    return stream > 0.0 and stream >= json


def _range(said: str) -> tuple[str, float]:
    """A media range and its weight; one that is no number is none."""
    name, *parameters = (part.strip() for part in said.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            with suppress(ValueError):
                return name, min(max(float(value), 0.0), 1.0)
    return name, 1.0
