"""Where a replay differs: the place, and both values as callers may see them."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.workflow.replay import ABSENT, first_difference


@pytest.mark.parametrize(
    ("recorded", "present", "found"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, (".a[1].b", "2", "3")),
        ({"a": 1}, {"a": 1, "b": None}, (".b", "", "null")),
        ([1, 2], [1], ("[1]", "2", "")),
        ([[1]], [[1.0]], ("[0][0]", "1", "1.0")),
        ({"a": 1}, [1], ("", '{"a":1}', "[1]")),
        (ABSENT, "x", ("", "", '"x"')),
    ],
)
def test_the_first_place_and_both_values(recorded: Any, present: Any, found: tuple[str, str, str]) -> None:
    assert first_difference(recorded, present) == found


def test_long_texts_are_shown_around_the_difference() -> None:
    found = first_difference("a" * 9000 + "x" + "b" * 9000, "a" * 9000 + "y" + "b" * 9000)
    assert found.recorded[1:].lstrip("a")[0] == "x" and found.present[1:].lstrip("a")[0] == "y"
    assert len(found.recorded) < 600


def test_secrets_are_redacted_as_in_traces() -> None:
    found = first_difference({"header": "x"}, {"header": "Bearer abcdefghijklmnop"})
    assert "abcdefgh" not in found.present and "***" in found.present
