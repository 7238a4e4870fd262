"""Vectors by the content of their texts, bounded by bytes; the one unused for longest goes first."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TypeAlias

Vector: TypeAlias = "array[float]"
#: of a vector's object and its key, beside its floats
_OVERHEAD = 200


def content_key(text: str) -> bytes:
    """Sixteen bytes that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


class VectorCache:
    """Args: limit: bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[bytes, Vector] = OrderedDict()

    def get(self, key: bytes) -> Vector | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: bytes, vector: Vector) -> None:
        if key in self._kept:
            return
        self._kept[key] = vector
        self._size += _weight(vector)
        while self._size > self._limit and self._kept:
            _, dropped = self._kept.popitem(last=False)
            self._size -= _weight(dropped)


def _weight(vector: Vector) -> int:
    return len(vector) * vector.itemsize + _OVERHEAD
