"""Ids of runs and traces."""

from __future__ import annotations

from hashlib import sha256
from os import urandom
from time import time_ns

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]


def ulid() -> str:
    """26 characters, sortable by time to the millisecond, 80 random bits (ulid/spec, Crockford base 32)."""
    value = (time_ns() // 1_000_000 << 80) | int.from_bytes(urandom(10))
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def run_id() -> str:
    return "run_" + ulid()


def trace_id() -> str:
    """32 hex digits (W3C Trace Context)."""
    return urandom(16).hex()


def derived_run_id(above: str, place: str) -> str:
    """The id of a run nested in a durable one: the same whenever that one is taken up again."""
    digest = int.from_bytes(sha256(f"{above}\n{place}".encode()).digest()[:10])
    return above[:14] + "".join([_PAIRS[(digest >> shift) & 1023] for shift in range(70, -1, -10)])
