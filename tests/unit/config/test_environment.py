"""Variables in values."""

from __future__ import annotations

import pytest

from astromesh.config.environment import MAX_TEXT, substitute

ENV = {"HOST": "example.org", "EMPTY": "", "TRICK": "${HOST}: [x]", "BYTES": "\udcff"}


@pytest.mark.parametrize(
    ("text", "result", "names"),
    [
        ("plain", "plain", ()),
        ("http://${HOST}/x", "http://example.org/x", ("HOST",)),
        ("${HOST:-other}", "example.org", ("HOST",)),
        ("${MISSING:-other:8000}", "other:8000", ("MISSING",)),
        ("${MISSING:-}", "", ("MISSING",)),
        ("${EMPTY:-other}", "other", ("EMPTY",)),
        ("${EMPTY}", "", ("EMPTY",)),
        ("$HOST $ {HOST}", "$HOST $ {HOST}", ()),
        ("$${HOST}", "${HOST}", ()),
        ("${HOST}${HOST}", "example.orgexample.org", ("HOST", "HOST")),
    ],
)
def test_a_variables_content_stands_for_it(text: str, result: str, names: tuple[str, ...]) -> None:
    found = substitute(text, ENV)
    assert (found.text, found.variables, found.faults) == (result, names, ())


def test_what_a_variable_holds_is_not_looked_into_again() -> None:
    assert substitute("${TRICK}", ENV).text == "${HOST}: [x]"


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("a ${MISSING} b", "MISSING is not set", 2),
        ("${a.b}", "must be followed by the name", 0),
        ("x${", "must be followed by the name", 1),
        ("${HOST:-${EMPTY}}", "must be followed by the name", 0),
        ("${BYTES}", "not UTF-8", 0),
        ("${}", "must be followed by the name", 0),
    ],
)
def test_what_cannot_be_put_in_is_a_fault_that_says_where(text: str, message: str, offset: int) -> None:
    (wrong, *_) = substitute(text, ENV).faults
    assert message in wrong.message
    assert wrong.offset == offset


def test_every_missing_variable_is_told_at_once() -> None:
    assert len(substitute("${A} ${B:-x} ${C}", {}).faults) == 2


def test_a_text_cannot_grow_without_bound() -> None:
    found = substitute("${BIG}" * 100_000, {"BIG": "x" * 100_000})
    assert "is longer than" in found.faults[0].message
    assert len(found.text) < 3 * MAX_TEXT
