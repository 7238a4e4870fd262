"""Several rankings as one: reciprocal rank fusion (Cormack, Clarke, Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

#: the paper's constant: how little the first places count beyond the next
K = 60


def scored(rankings: Iterable[Iterable[T]]) -> list[tuple[T, float]]:
    """What any of the rankings holds, best first, with scores in [0, 1]; of equals, the one seen first.

    It asks for nothing but ranks, so that scores of different scales need not be compared. 1.0 is first in
    each of the rankings.
    """
    points: dict[T, float] = {}
    several = 0
    for ranking in rankings:
        several += 1
        for place, one in enumerate(ranking, 1):
            points[one] = points.get(one, 0.0) + 1.0 / (K + place)
    most = several / (K + 1)
    return [(one, points[one] / most) for one in sorted(points, key=lambda one: -points[one])]
