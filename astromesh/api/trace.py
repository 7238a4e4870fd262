"""Incoming trace context (W3C Trace Context, `traceparent`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def incoming_trace_id(headers: Mapping[str, str]) -> str:
    """The trace that the caller's `traceparent` names, empty where there is none or it is not valid."""
    header = headers.get("traceparent")
    found = _TRACEPARENT.fullmatch(header) if header else None
    return found[1] if found and found[1].strip("0") else ""
