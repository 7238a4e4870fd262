"""docs/documents.md and docs/graph/contract.md name only what exists, and every row says module and test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.platform.astromesh import ROOT

PAGE = (ROOT / "docs" / "documents.md").read_text()
GRAPHS = (ROOT / "docs" / "graph" / "contract.md").read_text()
_ROW = re.compile(r"^\| (?!what is asked|requirement|---)(.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_NAMED = re.compile(r"`([^`]+)`")


@cache
def names_of(path: Path) -> frozenset[str]:
    """Names of the test functions of a file."""
    found = (
        n
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(n.name for n in found if n.name.startswith("test_"))


def missing(named: str) -> str:
    """What does not exist of `path` or `path::test`, or an empty string."""
    path, _, test = named.partition("::")
    place = ROOT / path
    if not place.exists():
        return path
    if test and test not in names_of(place):
        return named
    return (
        ""
        if test or place.is_dir() or not path.startswith("tests/") or names_of(place)
        else f"tests in {path}"
    )


@pytest.mark.parametrize("page", [PAGE, GRAPHS], ids=["documents", "contract of the graph engine"])
def test_every_module_and_test_that_is_named_exists(page: str, subtests: pytest.Subtests) -> None:
    rows = _ROW.findall(page.partition("## What is built otherwise")[0])
    assert len(rows) > 100
    for what, where, held in rows:
        with subtests.test(what):
            modules, tests = _NAMED.findall(where), _NAMED.findall(held)
            assert modules, "no module is named"
            assert tests, "no test is named"
            assert all(m.startswith("astromesh/") for m in modules)
            assert all(t.startswith("tests/") for t in tests)
            assert [found for named in (*modules, *tests) if (found := missing(named))] == []


def test_every_rule_of_workflows_is_named_by_a_test() -> None:
    """R1 to R7 and E1 to E63 stand in the names of tests, but for those said to be missing."""
    names = " ".join(n for path in (ROOT / "tests").glob("*/workflow/test_*.py") for n in names_of(path))
    absent = {n for n in range(1, 64) if not re.search(rf"_e{n}_", names)}
    assert [n for n in range(1, 8) if f"_r{n}_" not in names] == []
    said = PAGE.partition("## What is missing")[2]
    assert absent == {int(n) for n in re.findall(r"\bE(\d+)\b", said)}


def test_what_does_not_exist_is_found() -> None:
    assert missing("astromesh/nothing.py") == "astromesh/nothing.py"
    assert missing("tests/docs/test_documents_page.py::test_nothing").endswith("::test_nothing")
    assert missing("tests/platform/soak.py") == "tests in tests/platform/soak.py"
