"""docs/security.md has a row for each rule and risk, and each names tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_documents_page import missing
from tests.platform.astromesh import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = dict(re.findall(r"^\| ((?:S|LLM|ASI)\d+) [^|]+\|[^|]+\| (.+) \|$", PAGE, re.M))
RISKS = [f"{family}{n:02}" for family in ("LLM", "ASI") for n in range(1, 11)]


@pytest.mark.parametrize("line", [*(f"S{n}" for n in range(1, 11)), *RISKS])
def test_each_line_names_tests_that_exist(line: str) -> None:
    tests = re.findall(r"`(tests/[\w/.-]+::test_\w+)`", ROWS[line])
    assert tests
    assert re.sub(r"`[^`]+`|, ", "", ROWS[line]) == "", "beside tests nothing stands there"
    assert [found for named in tests if (found := missing(named))] == []


def test_no_other_test_or_file_is_named_that_is_not_there() -> None:
    named = re.findall(r"`((?:tests|astromesh)/[^`]+)`", PAGE)
    assert [found for one in named if (found := missing(one))] == []


def test_what_is_not_covered_is_said_of_known_lines() -> None:
    said = PAGE.partition("## What is not covered")[2]
    named = set(re.findall(r"\b(?:LLM|ASI)\d\d\b", said))
    assert named
    assert named <= set(RISKS)
