"""Which of a query's words propose passages, so that a word of nearly all does not cost as many. Pure.

Ranking costs microseconds per passage. Rare words propose all passages that have them; frequent ones only
those that have all of them, up to a number; words that stand nearly everywhere say nothing, and propose only
where there are no others. How many words a proposed passage has is counted over all of them afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
