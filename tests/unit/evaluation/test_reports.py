"""Reports: rows, JUnit XML, and whether a difference may be chance."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from astromesh.errors import InvalidInput
from astromesh.evaluation.base import CaseResult, CheckResult, Evaluation
from astromesh.evaluation.reports import baseline, comparisons, find, junit, p_value, rows, store, stored


def result(case: str, passed: bool, **more: object) -> CaseResult:
    checks = (CheckResult("equals", passed, "" if passed else "output is \x07 <5>"),)
    values = {"suite": "all", "status": "completed", "assertions": checks, "cost_usd": 0.5, **more}
    return CaseResult(case=case, passed=passed, **values)  # type: ignore[arg-type]


def report(*cases: CaseResult, name: str = "shop", id: str = "eval_1", at: float = 1.0) -> Evaluation:
    passed = all(one.passed for one in cases)
    return Evaluation(evaluation_id=id, kind="agent", name=name, started_at=at, passed=passed, cases=cases)


def test_rows_count_the_runs_of_a_case_with_a_model() -> None:
    found = rows([result("a", True), result("a", False, repeat=2), result("a", True, model="x:y")])
    assert [(row.model, row.passed, row.runs) for row in found] == [("", 1, 2), ("x:y", 1, 1)]
    assert found[0].failures == ("equals: output is \x07 <5>",) and not found[0].all_passed


def test_a_row_has_the_cost_and_the_time_of_one_run_on_average() -> None:
    found = rows([result("a", True, cost_usd=1.0, duration_ms=500.0), result("a", True, duration_ms=1500.0)])
    assert [(row.cost_usd, row.seconds, row.all_passed) for row in found] == [(0.75, 1.0, True)]


def test_junit_has_a_suite_for_each_model_and_one_for_an_early_end() -> None:
    checks: tuple[CheckResult, ...] = ()
    bad = result("a", False, model="x:y", assertions=checks, status="half \ud800", duration_ms=250.0)
    one = replace(report(result("a", True), bad), stopped="cost_limit")
    root = ET.fromstring(junit(one))
    assert root.get("name") == "shop"
    assert [(suite.get("name"), suite.get("failures"), suite.get("time")) for suite in root] == [
        ("all", "0", "0.000"), ("all [x:y]", "1", "0.250"), ("cost_limit", "1", None),
    ]  # fmt: skip
    case = root[1][0]
    assert (case.get("classname"), case.get("name")) == ("shop.all [x:y]", "a")
    assert [failure.get("message") for failure in case] == ["half ?"]
    assert {inner.tag for suite in root for inner in suite} == {"testcase"}
    assert {inner.tag for suite in root for one in suite for inner in one} == {"failure"}
    stopped = root[2][0]
    assert (stopped.get("classname"), stopped.get("name")) == ("shop", "cost_limit")
    assert [failure.get("message") for failure in stopped] == [
        "The cost limit was reached before the last case."
    ]


def test_junit_is_xml_with_a_failure_for_each_run_that_failed() -> None:
    one = report(result("a", True), result("a", False, repeat=2, duration_ms=1500.0))
    root = ET.fromstring(junit(one))
    suite = root[0]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("all", "2", "1")
    assert [case.get("name") for case in suite] == ["a", "a #2"]
    failure = suite[1].find("failure")
    assert failure is not None and failure.get("message") == "equals: output is   <5>"
    assert suite[1].get("time") == "1.500"


def test_a_report_is_stored_for_its_user_alone_and_read_again(tmp_path: Path) -> None:
    first, second = report(result("a", True)), report(result("a", False), id="eval_2", at=2.0)
    other = report(result("a", True), name="bank", id="eval_3", at=3.0)
    files = [store(tmp_path, one) for one in (first, second, other)]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert stored(tmp_path, "shop") == [second, first] and find(tmp_path, "eval_3") == other
    assert baseline(tmp_path, "last", "shop") == second == baseline(tmp_path, str(files[1]), "shop")
    assert find(tmp_path, "../evaluations/eval_1") is None
    assert baseline(tmp_path, "eval_1", "shop") == first
    (tmp_path / "evaluations" / "eval_0.json").write_text("{}")
    assert stored(tmp_path) == [other, second, first]
    with pytest.raises(InvalidInput, match="no earlier evaluation of 'tea'"):
        baseline(tmp_path, "last", "tea")
    with pytest.raises(InvalidInput, match="Cannot read the report"):
        baseline(tmp_path, "none.json", "shop")


def test_a_comparison_names_what_is_better_worse_and_new() -> None:
    before = report(result("a", True), result("b", False), result("c", True), result("old", True))
    after = report(result("a", False), result("b", True), result("c", True), result("new", True))
    (one,) = comparisons(after, before)
    assert ([x.case for x in one.better], [x.case for x in one.worse], one.same) == (["b"], ["a"], 1)
    assert one.worse[0].before == (1, 1) and one.worse[0].after == (0, 1) and one.worse[0].failures
    assert (one.only_before, one.only_after) == (("all/old",), ("all/new",))
    assert one.p_value == pytest.approx(1.0) and "may be chance" in one.hint
    assert (one.title, one.to_json()["hint"]) == ("shop against eval_1", one.hint)


def test_a_comparison_has_cost_and_time_of_the_cases_of_both() -> None:
    before = report(result("a", True, duration_ms=1000.0), result("old", True, cost_usd=9.0))
    after = report(
        result("a", True, cost_usd=0.1, duration_ms=500.0),
        result("a", False, cost_usd=0.3, duration_ms=500.0),
    )
    (one,) = comparisons(after, before)
    assert one.cost_usd == pytest.approx((0.5, 0.2)) and one.seconds == (1.0, 0.5)
    assert [(x.suite, x.case, x.before, x.after) for x in one.worse] == [("all", "a", (1, 1), (1, 2))]
    assert comparisons(report(), None) == []
    (none,) = comparisons(report(result("b", True)), before)
    assert (none.cost_usd, none.seconds, none.same) == ((0.0, 0.0), (0.0, 0.0), 0)


def test_several_models_of_a_baseline_are_compared_each_with_itself() -> None:
    before = report(result("a", False, model="x:y"), result("a", True, model="y:z"))
    found = comparisons(report(result("a", True, model="x:y"), result("a", True, model="new:one")), before)
    assert [(one.title, len(one.better)) for one in found] == [
        ("shop [x:y] against eval_1", 1), ("new:one against x:y", 0),
    ]  # fmt: skip


def test_models_are_compared_with_the_first_one_and_with_the_only_model_of_the_baseline() -> None:
    now = report(*(result(c, m == "y:z", model=m) for m in ("x:y", "y:z") for c in "abcdefgh"))
    before = report(*(result(c, False) for c in "abcdefgh"))
    found = comparisons(now, before)
    assert [(one.title, len(one.better)) for one in found] == [
        ("shop [x:y] against eval_1", 0), ("shop [y:z] against eval_1", 8), ("y:z against x:y", 8),
    ]  # fmt: skip
    assert found[0].hint == "No case differs." and "significant" in found[2].hint


@pytest.mark.parametrize(
    ("strata", "p"),
    [
        ([], 1.0),
        ([(1, 1, 1, 1), (0, 1, 0, 1)], 1.0),  # nothing differs
        ([(0, 1, 1, 1)] * 5, 2 / 2**5),  # McNemar: five better, none worse
        ([(0, 1, 1, 1)] * 3 + [(1, 1, 0, 1)], 10 / 16),  # three better, one worse
        ([(0, 5, 5, 5)], 2 / 252),  # Fisher: one case, five runs before and after
    ],
)
def test_the_p_value_is_that_of_the_known_tests(strata: list[tuple[int, int, int, int]], p: float) -> None:
    assert p_value(strata) == pytest.approx(p)
