"""Ids of runs and traces, and `traceparent` of callers and of outgoing calls (W3C Trace Context)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar, Token
from hashlib import blake2b, sha256
from os import register_at_fork, urandom
from time import time_ns
from typing import NamedTuple

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
#: five bits of each byte as a letter: sixteen random bytes give 80 random bits
_LETTERS = (_ALPHABET * 8).encode()
_ID_BYTES, _BATCH = 16, 256
#: random bytes of one system call: each call releases the interpreter's lock, and under load waiting for the
#: lock takes longer than everything else that an id needs
_unused: list[bytes] = []
register_at_fork(after_in_child=_unused.clear)


def new_id(prefix: str = "") -> str:
    """Returns a ULID behind a prefix, e.g. `run_`.

    26 characters in Crockford's base 32, sortable by time to the millisecond, 80 random bits (ulid/spec).
    """
    now, pairs = time_ns() // 1_000_000, _PAIRS
    high = prefix + pairs[now >> 40 & 1023] + pairs[now >> 30 & 1023] + pairs[now >> 20 & 1023]
    return high + pairs[now >> 10 & 1023] + pairs[now & 1023] + _random_bytes().translate(_LETTERS).decode()


def first_id(prefix: str, seconds: float) -> str:
    """Returns the smallest id of a time, in seconds since the epoch: ids made since then are greater."""
    ms = int(seconds * 1000)
    return prefix + "".join([_PAIRS[(ms >> shift) & 1023] for shift in range(40, -1, -10)])


def created_at(run: str) -> float:
    """Returns when a run's id was created, in seconds since the epoch; 0 for a foreign id."""
    digits = [_ALPHABET.find(letter) for letter in run.removeprefix("run_")[:10]]
    if not run.startswith("run_") or len(digits) < 10 or -1 in digits:
        return 0.0
    value = 0
    for digit in digits:
        value = value << 5 | digit
    return value / 1000


def trace_id() -> str:
    """32 hex digits (W3C Trace Context)."""
    return _random_bytes().hex()


def derived_run_id(above: str, place: str) -> str:
    """Returns the id of a run nested in a durable one, or in a Task; it is the same after a resume."""
    digest = int.from_bytes(sha256(f"{above}\n{place}".encode()).digest()[:10])
    return f"run_{above.rpartition('_')[2][:10]}" + "".join(
        [_PAIRS[(digest >> shift) & 1023] for shift in range(70, -1, -10)]
    )


def _random_bytes() -> bytes:
    """Returns 16 fresh random bytes; thread-safe."""
    try:
        return _unused.pop()
    except IndexError:
        fresh = urandom(_ID_BYTES * _BATCH)
        first, *more = [fresh[at : at + _ID_BYTES] for at in range(0, len(fresh), _ID_BYTES)]
        _unused.extend(more)
        return first


# -- the caller's trace ------------------------------------------------------------------------------------

#: version ff is invalid; versions after 00 may add fields after the flags
_TRACEPARENT = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED = 1


class TraceParent(NamedTuple):
    """The caller's trace, its span in the trace, and whether it samples the trace.

    Args:
        trace_id: 32 hex digits, or empty.
        span_id: 16 hex digits, or empty.
        sampled: None: not decided.
    """

    trace_id: str = ""
    span_id: str = ""
    sampled: bool | None = None

    @property
    def header(self) -> str:
        """The header value, as sent and stored; empty without a trace."""
        return f"00-{self.trace_id}-{self.span_id}-{int(bool(self.sampled)):02x}" if self.trace_id else ""


NO_TRACE_PARENT = TraceParent()


def read_traceparent(header: str | None) -> TraceParent:
    """Parses a `traceparent` header. Returns `NO_TRACE_PARENT` if it is missing or not valid."""
    found = _TRACEPARENT.fullmatch(header.strip()) if header else None
    if found is None:
        return NO_TRACE_PARENT
    trace, span, flags = found.groups()
    if not trace.strip("0") or not span.strip("0"):
        return NO_TRACE_PARENT
    return TraceParent(trace, span, bool(int(flags, 16) & _SAMPLED))


# -- outgoing calls ----------------------------------------------------------------------------------------


class ActiveTrace(NamedTuple):
    """The run or Task that the code of this context is part of. Args: sampled: as of `TraceParent`."""

    trace_id: str
    run_id: str
    sampled: bool | None = None


_active: ContextVar[ActiveTrace | None] = ContextVar("astromesh_trace", default=None)


class in_trace:  # noqa: N801 (as contextlib's own)
    """Makes calls to other services part of a run's trace for a block."""

    __slots__ = ("_active", "_token")
    _token: Token[ActiveTrace | None]

    def __init__(self, trace_id: str, run_id: str, sampled: bool | None = None) -> None:
        self._active = ActiveTrace(trace_id, run_id, sampled) if trace_id else None

    def __enter__(self) -> None:
        self._token = _active.set(self._active)

    def __exit__(self, *_: object) -> None:
        _active.reset(self._token)


def with_traceparent(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Returns headers of an outgoing call with the `traceparent` of the run; unchanged outside a run."""
    header = outgoing_traceparent()
    return {**headers, "traceparent": header} if header else headers


def outgoing_traceparent(call_id: str = "") -> str:
    """Returns the `traceparent` of an outgoing call, empty outside a run.

    Args:
        call_id: of the tool call that makes it. Empty: its span is that of the run.
    """
    active = _active.get()
    if active is None:
        return ""
    span = f"{active.run_id}.{call_id}" if call_id else active.run_id
    return f"00-{active.trace_id}-{span_bytes(span).hex()}-{int(active.sampled is not False):02x}"


def span_bytes(span_id: str) -> bytes:
    """Returns the eight bytes by which a span is known outside, e.g. in OpenTelemetry."""
    return blake2b(span_id.encode(), digest_size=8).digest()
