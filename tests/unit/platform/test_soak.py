"""What `make soak` calls growing: the verdict over its samples."""

from __future__ import annotations

import pytest

from tests.platform.soak import Sample, complaints, grown, slope

MIB = 2**20


def samples(resident=lambda n: 100 * MIB, files=lambda n: 20, tasks=lambda n: 8) -> list[Sample]:
    """Forty rounds of 500 runs."""
    return [Sample(500 * n, int(resident(n)), files(n), tasks(n), 0.001) for n in range(1, 41)]


def test_what_stays_as_it_is_grows_not():
    assert complaints(samples()) == []


def test_caches_that_fill_up_in_the_first_half_are_no_leak():
    assert complaints(samples(resident=lambda n: (100 + min(n, 18)) * MIB)) == []


def test_one_kibibyte_for_each_run_is_a_leak_and_is_said_in_bytes():
    leaky = samples(resident=lambda n: 100 * MIB + 500 * n * 1024)
    assert slope(leaky) == 1024
    assert complaints(leaky) == ["each run leaves 1024 bytes behind (at most 256)"]


def test_a_single_outlier_does_not_make_a_slope():
    assert slope(samples(resident=lambda n: (300 if n == 39 else 100) * MIB)) == 0


@pytest.mark.parametrize("what", ["files", "tasks"])
def test_one_more_every_other_round_is_a_leak(what):
    (said,) = complaints(samples(**{what: lambda n: 20 + n // 2}))
    assert what in said


def test_connections_that_come_and_go_are_none():
    assert complaints(samples(files=lambda n: 20 + n % 3)) == []


def test_one_sample_has_no_slope():
    assert (slope(samples()[:1]), grown(samples()[:1], lambda s: s.files)) == (0.0, 0)
