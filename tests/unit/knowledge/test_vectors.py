"""Rank fusion, hybrid results and the exact vector index, against plain Python."""

from __future__ import annotations

import random
from array import array

import pytest

from astromesh.knowledge.ranking import fuse_results
from astromesh.knowledge.vectors import VectorIndex


def unit(rng: random.Random, size: int) -> array[float]:
    vector = [rng.gauss(0, 1) for _ in range(size)]
    length = sum(x * x for x in vector) ** 0.5
    return array("f", [x / length for x in vector])


def test_the_index_finds_what_a_plain_loop_finds():
    rng = random.Random(7)
    vectors = {n * 3: unit(rng, 16) for n in range(1, 500)}
    index = VectorIndex(16)
    ids = list(vectors)
    for start in range(0, len(ids), 70):  # in pieces, so that it grows
        part = ids[start : start + 70]
        index.extend(part, [vectors[i].tobytes() for i in part])
    query = unit(rng, 16)
    plain = {i: sum(a * b for a, b in zip(v, query, strict=True)) for i, v in vectors.items()}
    expected = sorted(plain, key=lambda i: -plain[i])[:10]
    found = index.nearest(query.tobytes(), 10)
    assert [i for i, _ in found] == expected
    assert [score for _, score in found] == pytest.approx([plain[i] for i in expected], abs=1e-6)
    asked = [3, 4, 300, 999_999, 0]
    assert index.cosines(asked, query.tobytes()) == pytest.approx({3: plain[3], 300: plain[300]}, abs=1e-6)
    assert len(index) == 499


def test_an_empty_index_and_a_wish_for_nothing_find_nothing():
    index = VectorIndex(4)
    query = array("f", [1, 0, 0, 0]).tobytes()
    assert index.nearest(query, 5) == []
    assert index.cosines([1, 2], query) == {}
    index.extend([1], [query])
    assert index.nearest(query, 0) == []
    assert index.nearest(query, 5) == [(1, 1.0)]


def test_a_vector_of_another_size_is_refused():
    with pytest.raises(ValueError, match="reshape"):
        VectorIndex(4).extend([1, 2], [bytes(16), bytes(12)])


def test_what_both_rankings_have_comes_before_what_one_has():
    near, worded = [(1, 0.9), (2, 0.8), (3, 0.7)], [(3, 0.6), (4, 0.5)]
    found = fuse_results(near, worded, {3: 0.7, 4: 0.1}, top_k=10, threshold=0.0)
    assert [one for one, _ in found] == [3, 1, 2, 4]
    assert dict(found) == {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.1}


def test_what_has_no_vector_keeps_the_score_of_its_words():
    assert fuse_results([], [(5, 0.4)], {}, top_k=10, threshold=0.3) == [(5, 0.4)]
    assert fuse_results([], [(5, 0.4)], {}, top_k=10, threshold=0.5) == []


def test_what_is_not_near_at_all_is_left_out():
    assert fuse_results([(1, 0.0), (2, -0.3)], [], {}, top_k=10, threshold=0.0) == []


def test_scores_stay_in_their_range_and_results_in_their_number():
    near = [(n, 1.0000002) for n in range(10)]
    assert fuse_results(near, [], {}, top_k=3, threshold=0.0) == [(0, 1.0), (1, 1.0), (2, 1.0)]
