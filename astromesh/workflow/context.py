"""The context assembler: from items of memory to the package that one stage is given. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from astromesh.config.workflow.memory import ContextProfile, SourceSpec
from astromesh.retrieval.fusion import scored
from astromesh.retrieval.words import terms, words_of
from astromesh.tokens import estimate
from astromesh.types import JsonObject
from astromesh.workflow.values import digest, private

#: what `context: global` means
GLOBAL = ContextProfile(
    id="global", max_tokens=4000, retrieval_policy="recency", sources=(SourceSpec(store="global"),)
)


class Item(NamedTuple):
    """One thing remembered.

    Args:
        id: unique, from the lineage: task and stage that wrote it.
        layer: `task`, `project` or `global`.
        node: the node that wrote it.
        value: a stage's output.
    """

    id: str
    layer: str
    node: str
    tags: tuple[str, ...]
    value: Any

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else orjson.dumps(self.value).decode()

    def to_json(self) -> JsonObject:
        return {
            "id": self.id,
            "layer": self.layer,
            "node": self.node,
            "tags": list(self.tags),
            "value": self.value,
        }


@dataclass(frozen=True)
class Package:
    """What a stage sees of memory: chosen items, oldest first. Not to be changed; values are copies."""

    profile: str
    items: tuple[Item, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(item.id for item in self.items)

    @property
    def values(self) -> list[Any]:
        return [private(item.value) for item in self.items]

    @cached_property
    def hash(self) -> str:
        return digest([[item.id, item.value] for item in self.items])

    @property
    def text(self) -> str:
        """For a prompt: an item a line, with the node that wrote it."""
        return "\n".join(f"- {item.node}: {item.text}" for item in self.items)

    def to_json(self) -> JsonObject:
        return {"profile": self.profile, "hash": self.hash, "items": [item.to_json() for item in self.items]}


def matching(items: Iterable[Item], tags: Sequence[str]) -> list[Item]:
    """Items with any of these tags; all where none is given. A node's id is a tag of what it wrote."""
    return [item for item in items if not tags or item.node in tags or any(tag in tags for tag in item.tags)]


def assemble(profile: ContextProfile, items: Sequence[Item], query: str) -> Package:
    """Chooses by the profile's policy what fits into its tokens.

    Args:
        items: of all its sources, oldest first.
        query: the stage's input as text.
    """
    ranked = RANKINGS[profile.retrieval_policy](items, query)
    chosen: set[int] = set()
    left = profile.max_tokens
    for place in ranked:
        size = estimate(items[place].text)
        if size <= left:
            chosen.add(place)
            left -= size
    return Package(profile.id, tuple(item for i, item in enumerate(items) if i in chosen))


def by_recency(items: Sequence[Item], query: str) -> list[int]:
    return list(range(len(items) - 1, -1, -1))


def by_meaning(items: Sequence[Item], query: str) -> list[int]:
    """Places of items that share words with the query, best first; rare words count more."""
    wanted = terms(query)
    bags = [{word.lower() for word in words_of(item.text)} for item in items]
    having = Counter(word for bag in bags for word in wanted if word in bag)
    weight = {word: math.log(1 + len(items) / count) for word, count in having.items()}
    scores = [sum(weight[word] for word in wanted if word in bag) for bag in bags]
    return sorted((i for i, score in enumerate(scores) if score), key=lambda i: (-scores[i], -i))


def by_both(items: Sequence[Item], query: str) -> list[int]:
    return [place for place, _ in scored((by_meaning(items, query), by_recency(items, query)))]


RANKINGS: Mapping[str, Callable[[Sequence[Item], str], list[int]]] = {
    "recency": by_recency,
    "semantic": by_meaning,
    "hybrid": by_both,
}
