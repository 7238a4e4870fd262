"""Several rankings as one: reciprocal rank fusion (Cormack, Clarke, Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

#: the paper's constant: how little the first places count beyond the next
K = 60


def fused(rankings: Iterable[Iterable[T]]) -> list[T]:
    """What any of the rankings holds, best first; where two are equal, the one seen first.

    It asks for nothing but ranks, so that scores of different scales need not be compared.
    """
    points: dict[T, float] = {}
    for ranking in rankings:
        for place, one in enumerate(ranking, 1):
            points[one] = points.get(one, 0.0) + 1.0 / (K + place)
    return sorted(points, key=lambda one: -points[one])
