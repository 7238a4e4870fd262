"""Ids of runs and traces."""

from __future__ import annotations

from hashlib import sha256
from os import register_at_fork, urandom
from time import time_ns

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
#: of each byte five bits, as a letter: sixteen random bytes are 80 random bits
_LETTERS = (_ALPHABET * 8).encode()
_RANDOM, _AT_ONCE = 16, 256
#: what the system's generator gave in one call: each call gives up the interpreter's lock, which under load
#: takes longer to get back than all else that an id needs
_spare: list[bytes] = []
register_at_fork(after_in_child=_spare.clear)


def ulid() -> str:
    """26 characters, sortable by time to the millisecond, 80 random bits (ulid/spec, Crockford base 32)."""
    now = time_ns() // 1_000_000
    made = "".join([_PAIRS[(now >> shift) & 1023] for shift in (40, 30, 20, 10, 0)])
    return made + _random().translate(_LETTERS).decode()


def run_id() -> str:
    return "run_" + ulid()


def made_at(run: str) -> float:
    """When a run's id was made, in seconds since the epoch; 0 where it is none of ours."""
    digits = [_ALPHABET.find(letter) for letter in run.removeprefix("run_")[:10]]
    if not run.startswith("run_") or len(digits) < 10 or -1 in digits:
        return 0.0
    value = 0
    for digit in digits:
        value = value << 5 | digit
    return value / 1000


def trace_id() -> str:
    """32 hex digits (W3C Trace Context)."""
    return _random().hex()


def derived_run_id(above: str, place: str) -> str:
    """The id of a run nested in a durable one: the same whenever that one is taken up again."""
    digest = int.from_bytes(sha256(f"{above}\n{place}".encode()).digest()[:10])
    return above[:14] + "".join([_PAIRS[(digest >> shift) & 1023] for shift in range(70, -1, -10)])


def _random() -> bytes:
    """16 random bytes that were never handed out before; from any thread."""
    try:
        return _spare.pop()
    except IndexError:
        fresh = urandom(_RANDOM * _AT_ONCE)
        first, *more = [fresh[at : at + _RANDOM] for at in range(0, len(fresh), _RANDOM)]
        _spare.extend(more)
        return first
