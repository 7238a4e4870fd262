"""docs/their-issues.md has rows of known projects, and each names tests that exist."""

from __future__ import annotations

import re

from tests.docs.test_documents_page import missing, names_of
from tests.platform.astromesh import ROOT

PAGE = (ROOT / "docs" / "their-issues.md").read_text()
ROWS = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| (.+?) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/.-]+::test_\w+)`")
PROJECTS = {
    "agno-agi/agno",
    "CopilotKit/CopilotKit",
    "google/adk-python",
    "langchain-ai/langgraph",
    "mastra-ai/mastra",
    "openai/openai-agents-python",
    "pydantic/pydantic-ai",
}


def test_there_are_fifteen_reports_and_of_every_project_one() -> None:
    reports = [report for report, *_ in ROWS]
    assert len(reports) == len(set(reports)) >= 15
    assert len(reports) == PAGE.count("\n| [")
    assert {report.partition("#")[0] for report in reports} == PROJECTS


def test_every_row_has_the_address_and_the_date_of_its_report_and_tests_that_exist(subtests) -> None:
    for report, address, date, wrong, tests in ROWS:
        with subtests.test(report):
            assert address == f"https://github.com/{report.replace('#', '/issues/')}"
            assert re.fullmatch(r"(by )?20\d\d-\d\d-\d\d", date)
            assert wrong.endswith(".")
            assert NAMED.findall(tests)
            assert NAMED.sub("", tests).replace(", ", "") == "", "beside tests nothing stands there"
            assert [found for named in NAMED.findall(tests) if (found := missing(named))] == []


def test_every_test_of_the_folder_is_named() -> None:
    files = (ROOT / "tests" / "their_issues").glob("test_*.py")
    tests = {f"{path.relative_to(ROOT)}::{name}" for path in files for name in names_of(path)}
    assert tests - set(NAMED.findall(PAGE)) == set()
