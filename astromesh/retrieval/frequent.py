"""Which of a query's words propose passages, so that a word of nearly all does not cost as many. Pure.

Ranking costs microseconds per passage. Rare words propose all passages that have them; frequent ones only
those that have all of them, up to a number; words that stand nearly everywhere say nothing, and propose only
where there are no others. How many words a proposed passage has is counted over all of them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from astromesh.retrieval.words import all_of, any_of

#: passages that are ranked for one query, about
MOST_RANKED = 1500
#: counting goes no further: a word of more passages stands everywhere
EVERYWHERE = 20_000


class Plan(NamedTuple):
    """The words of a query by how many passages have them.

    Args:
        rare: rarest first; all passages with any of them are ranked.
        frequent: passages with all of them are ranked, up to `room`.
        everywhere: of no use to rank by.
        room: what the rare words leave of it, at least a fifth.
    """

    rare: tuple[str, ...]
    frequent: tuple[str, ...]
    everywhere: tuple[str, ...]
    room: int


def planned(counts: Mapping[str, int], most: int = MOST_RANKED) -> Plan:
    """Decides.

    Args:
        counts: passages that have each word; EVERYWHERE stands for that many or more.
        most: passages that are ranked, about.
    """
    rare: list[str] = []
    frequent: list[str] = []
    everywhere: list[str] = []
    room = most
    for term, count in sorted(counts.items(), key=lambda one: one[1]):
        if count <= room:
            rare.append(term)
            room -= count
        else:
            (frequent if count < EVERYWHERE else everywhere).append(term)
    return Plan(tuple(rare), tuple(frequent), tuple(everywhere), max(room, most // 5))


def proposed(plan: Plan, ranked: Callable[[str, int], Mapping[int, float]]) -> dict[int, float]:
    """Passages that the rare and the frequent words propose, with their BM25.

    Args:
        ranked: passages that an FTS5 expression matches, so many at most, with their BM25.
    """
    found = dict(ranked(any_of(plan.rare), 2 * MOST_RANKED)) if plan.rare else {}
    if plan.frequent:
        for row, rank in ranked(all_of(plan.frequent), plan.room).items():
            found[row] = found.get(row, 0.0) + rank
    if plan.frequent and not found:
        found = dict(ranked(any_of(plan.frequent), plan.room))
    return found
