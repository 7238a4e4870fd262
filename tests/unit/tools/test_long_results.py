"""Whole results of tools: bounded in number of characters and in time, and each principal's own."""

from __future__ import annotations

from astromesh.testing import ManualClock
from astromesh.tools.results import MAX_RESULT_CHARACTERS, RESULT_TTL_SECONDS, LongResults
from astromesh.types import SessionKey

ALICE = SessionKey("t", "bot", "s")


def keep(kept: LongResults, call: str, text: str, owner: str = "alice", run: str = "run_1") -> str:
    return kept.add(run, call, text, ALICE, owner)


def text_of(kept: LongResults, name: str, run: str = "run_1") -> str:
    found = kept.find(run, name)
    return found.text if found else ""


def test_calls_of_one_id_are_kept_apart_and_other_runs_see_none() -> None:
    kept = LongResults(ManualClock())
    assert [keep(kept, "c", text) for text in ("a", "b", "c")] == ["c", "c-2", "c-3"]
    assert text_of(kept, "c-2") == "b"
    assert kept.find("run_2", "c") is None


def test_the_oldest_go_where_there_are_too_many_and_when_their_time_is_over() -> None:
    clock = ManualClock()
    kept = LongResults(clock, max_characters=10)
    for name, text in (("a", "xxxx"), ("b", "yyyy"), ("c", "zzzz")):
        keep(kept, name, text)
    assert [text_of(kept, name) for name in "abc"] == ["", "yyyy", "zzzz"]
    clock.advance(RESULT_TTL_SECONDS)
    assert kept.find("run_1", "c") is None
    keep(kept, "d", "0123456789")
    assert text_of(kept, "d") == "0123456789"


def test_of_a_huge_result_the_beginning_is_kept() -> None:
    kept = LongResults(ManualClock())
    keep(kept, "a", "x" * (MAX_RESULT_CHARACTERS + 5))
    found = kept.find("run_1", "a")
    assert found is not None
    assert (len(found.text), found.characters) == (MAX_RESULT_CHARACTERS, MAX_RESULT_CHARACTERS + 5)


def test_erasing_a_principal_takes_its_results_and_no_others() -> None:
    kept = LongResults(ManualClock())
    keep(kept, "a", "x")
    keep(kept, "b", "y", owner="bob")
    assert kept.erase_owner("t", "alice") == 1
    assert [text_of(kept, name) for name in "ab"] == ["", "y"]
