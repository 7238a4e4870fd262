"""Feature hashing: turns words and parts of words into vectors, without a model and without a network.

Nearness means similar words, not similar meaning (`semantic = False`): it finds inflections and typing
errors, never a synonym. Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Self
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field

from astromesh.knowledge.base import Vector
from astromesh.knowledge.ranking import fold, words_of
from astromesh.plugins import Deps

#: weight of a part of a word beside the word itself
_PART_WEIGHT = 0.5
_PART_LENGTH = 4
_LONGEST_WORD = 40
#: more texts than these are hashed in a thread, so that the event loop stays free
_MAX_INLINE_TEXTS = 4
_MOST_CHARACTERS = 24_000
_SMALL_WORDS = """
    a about am an and any are as at be been being but by can could did do does doing for from get go got
    had has have having he hello help her hi him his how i if in into is it its itself just know like
    may me might mine my need of on or our ours please shall she should so some tell than thank thanks
    that the their them then there these they this those to too us want was we were what when where
    which who whom whose why will with would you your yours don didn doesn isn aren wasn weren can
    couldn won wouldn ll re ve s t d m im ive id
"""
#: words that are left out; they belong to the model `hashing/1`: another list makes other vectors
_LEFT_OUT = frozenset(_SMALL_WORDS.split())


class HashingOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    dimensions: int = Field(384, ge=16, le=4096, description="Size of the vectors.")


class HashingEmbedder:
    """The plugin `hashing`: local and deterministic."""

    Options: ClassVar[type[BaseModel]] = HashingOptions
    semantic = False

    def __init__(self, dimensions: int = 384) -> None:
        self.dimensions = dimensions
        self.fingerprint = f"hashing/1/{dimensions}"

    @classmethod
    async def open(cls, options: HashingOptions, deps: Deps) -> Self:
        return cls(options.dimensions)

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        if len(texts) <= _MAX_INLINE_TEXTS:
            return [_vector(text, self.dimensions) for text in texts]
        return await asyncio.to_thread(lambda: [_vector(text, self.dimensions) for text in texts])

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Does nothing: no resource is open."""


def _vector(text: str, dimensions: int) -> Vector:
    counted = Counter(_plain_words(text[:_MOST_CHARACTERS]))
    sums = [0.0] * dimensions
    for word, count in counted.items():
        factor = 1.0 + math.log(count)
        for place, weight in _features(word):
            sums[place % dimensions] += weight * factor
    length = math.sqrt(math.fsum(value * value for value in sums))
    return array("f", [value / length for value in sums] if length else sums)


def _plain_words(text: str) -> list[str]:
    """The words in lower case without accents and stop words; a text of stop words only keeps them."""
    found = [word[:_LONGEST_WORD] for word in words_of(fold(text))]
    return [word for word in found if word not in _LEFT_OUT] or found


@lru_cache(maxsize=20_000)
def _features(word: str) -> tuple[tuple[int, float], ...]:
    """Place and signed weight of a word and of its parts; signs let collisions cancel out."""
    padded = f"<{word}>"
    parts = {padded[n : n + _PART_LENGTH] for n in range(len(padded) - _PART_LENGTH + 1)} - {padded}
    return (_feature(word, 1.0), *(_feature("#" + part, _PART_WEIGHT) for part in sorted(parts)))


def _feature(name: str, weight: float) -> tuple[int, float]:
    value = crc32(name.encode("utf-8", "replace"))
    return value >> 1, weight if value & 1 else -weight
