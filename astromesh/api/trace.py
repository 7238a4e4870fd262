"""Incoming trace context (W3C Trace Context, `traceparent`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: version ff is none; a version after 00 may say more behind the flags
_TRACEPARENT = re.compile(r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


def incoming_trace_id(headers: Mapping[str, str]) -> str:
    """The trace that the caller's `traceparent` names, empty where there is none or it is not valid."""
    return _named(headers)[0]


def incoming_span_id(headers: Mapping[str, str]) -> str:
    """The caller's own span in that trace: 16 hex digits, or empty."""
    return _named(headers)[1]


def _named(headers: Mapping[str, str]) -> tuple[str, str]:
    header = headers.get("traceparent")
    found = _TRACEPARENT.fullmatch(header.strip()) if header else None
    if found is None:
        return "", ""
    trace, span = found[1], found[2]
    return (trace, span) if trace.strip("0") and span.strip("0") else ("", "")
