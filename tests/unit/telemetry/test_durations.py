"""The machine's time, and how long something took by it."""

from __future__ import annotations

from time import perf_counter

from astromesh.telemetry.events import ms_since


def test_time_passed_is_told_in_milliseconds_to_the_microsecond() -> None:
    before = perf_counter()
    passed = ms_since(before - 1.5)
    assert 1500.0 <= passed <= 1500.0 + (perf_counter() - before) * 1000 + 0.001
    assert passed == round(passed, 3)
