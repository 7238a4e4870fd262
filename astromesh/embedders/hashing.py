"""Feature hashing: words and parts of words to vectors, without a model and without a network.

Its nearness is that of words, not of meaning (`semantic = False`): it finds inflections and typing errors,
never a synonym. Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009.
"""

from __future__ import annotations

import asyncio
import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Self
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.embedders.cache import Vector
from astromesh.retrieval.words import SMALL_WORDS

_WORD = re.compile(r"[^\W_]+")
#: what a part of a word weighs beside the word itself
_PART_WEIGHT = 0.5
_PART_LENGTH = 4
_LONGEST_WORD = 40
#: more texts than these are hashed in a thread: the event loop stays free
_FEW = 4
_MOST_CHARACTERS = 24_000


class HashingOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    dimensions: int = Field(384, ge=16, le=4096, description="Size of the vectors.")


class HashingEmbedder:
    """The plugin `hashing`: local, the same everywhere and always."""

    Options: ClassVar[type[BaseModel]] = HashingOptions
    semantic = False

    def __init__(self, dimensions: int = 384) -> None:
        self.dimensions = dimensions
        self.fingerprint = f"hashing/1/{dimensions}"

    @classmethod
    async def open(cls, options: HashingOptions, deps: Deps) -> Self:
        return cls(options.dimensions)

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        if len(texts) <= _FEW:
            return [_vector(text, self.dimensions) for text in texts]
        return await asyncio.to_thread(lambda: [_vector(text, self.dimensions) for text in texts])

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Nothing is open."""


def _vector(text: str, dimensions: int) -> Vector:
    counted = Counter(_words(text[:_MOST_CHARACTERS]))
    sums = [0.0] * dimensions
    for word, count in counted.items():
        often = 1.0 + math.log(count)
        for place, weight in _features(word):
            sums[place % dimensions] += weight * often
    length = math.sqrt(math.fsum(value * value for value in sums))
    return array("f", [value / length for value in sums] if length else sums)


def _words(text: str) -> list[str]:
    """Lower case, without accents; a text of small words only keeps them."""
    folded = unicodedata.normalize("NFKD", text.lower())
    plain = "".join(c for c in folded if not unicodedata.combining(c)) if not folded.isascii() else folded
    found = [word[:_LONGEST_WORD] for word in _WORD.findall(plain)]
    return [word for word in found if word not in SMALL_WORDS] or found


@lru_cache(maxsize=20_000)
def _features(word: str) -> tuple[tuple[int, float], ...]:
    """Place and signed weight of a word and of its parts; the sign lets collisions cancel out."""
    padded = f"<{word}>"
    parts = {padded[n : n + _PART_LENGTH] for n in range(len(padded) - _PART_LENGTH + 1)} - {padded}
    return (_feature(word, 1.0), *(_feature("#" + part, _PART_WEIGHT) for part in sorted(parts)))


def _feature(name: str, weight: float) -> tuple[int, float]:
    value = crc32(name.encode("utf-8", "replace"))
    return value >> 1, weight if value & 1 else -weight
