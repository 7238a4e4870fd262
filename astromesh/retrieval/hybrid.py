"""What was found by vectors and what was found by words, as one list of results. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astromesh.retrieval.fusion import scored

#: share of the best cosine from which on a neighbour says something beside words
_TELLING = 0.5


def candidates(top_k: int) -> int:
    """How many passages each way of searching proposes."""
    return max(20, 4 * top_k)


def both(worded: Sequence[tuple[int, float]], near: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Two rankings as one, with scores in [0, 1]: 1.0 is first in each.

    Reciprocal rank fusion does not see how near a neighbour is: what is less than half as near as the nearest
    is left out, or the last of the neighbours would count nearly as much as the first words found.

    Args:
        worded, near: ids with scores, best first.
    """
    least = near[0][1] * _TELLING if near else 0.0
    return scored(([one for one, _ in worded], [one for one, cosine in near if cosine >= least]))


def merged(
    near: Sequence[tuple[int, float]],
    worded: Sequence[tuple[int, float]],
    cosines: Mapping[int, float],
    *,
    top_k: int,
    threshold: float,
) -> list[tuple[int, float]]:
    """The best ids with their scores in [0, 1]: ordered by both rankings, scored by nearness.

    Args:
        near: ids with their cosine, nearest first; empty where there are no vectors.
        worded: ids found by words with their score, best first.
        cosines: of those found by words; one that has no vector keeps the score of its words.
        threshold: least score; what has none at all is left out in any case.
    """
    scores = {**dict(worded), **{one: cosines[one] for one, _ in worded if one in cosines}, **dict(near)}
    ranked = scored(([one for one, _ in near], [one for one, _ in worded]))
    order = [one for one, _ in sorted(ranked, key=lambda r: (-r[1], -scores[r[0]]))]
    good = [(one, min(1.0, scores[one])) for one in order if scores[one] > 0 and scores[one] >= threshold]
    return good[:top_k]
