"""Where a caller's trace stands (W3C Trace Context, `traceparent`)."""

from __future__ import annotations

import re
from typing import NamedTuple

#: version ff is none; a version after 00 may say more behind the flags
_TRACEPARENT = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED = 1


class TraceParent(NamedTuple):
    """The caller's trace, its own span in it, and whether it keeps that trace.

    Args:
        trace_id: 32 hex digits, or empty: there is none.
        span_id: 16 hex digits, or empty.
        sampled: None: nobody has decided.
    """

    trace_id: str = ""
    span_id: str = ""
    sampled: bool | None = None

    @property
    def header(self) -> str:
        """As it is sent, and kept; empty where there is none."""
        return f"00-{self.trace_id}-{self.span_id}-{int(bool(self.sampled)):02x}" if self.trace_id else ""


NO_PARENT = TraceParent()


def read_traceparent(header: str | None) -> TraceParent:
    """What a header says; `NO_PARENT` where there is none or it is not valid: neither half is believed."""
    found = _TRACEPARENT.fullmatch(header.strip()) if header else None
    if found is None:
        return NO_PARENT
    trace, span, flags = found.groups()
    if not trace.strip("0") or not span.strip("0"):
        return NO_PARENT
    return TraceParent(trace, span, bool(int(flags, 16) & _SAMPLED))
