"""The checks of an outcome: what passes, what fails and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astromesh.config.workflow import Assertion, EvaluationCase
from astromesh.errors import ProviderUnavailable
from astromesh.evaluation.base import CalledTool, Case, Kind, Options, Outcome, Verdict, golden_record
from astromesh.evaluation.evaluate import Checked, check, evaluation_of, run_cases

OUTCOME = Outcome(
    ids={"run_id": "run_1", "agent": "shop"},
    status="completed",
    output={"text": "It costs 5 EUR.", "items": [{"price": 5}]},
    path=("ask", "answer"),
    tool_calls=(CalledTool("price", {"item": "tea", "currency": "EUR"}), CalledTool("note", "no json")),
    cost_usd=0.002,
    duration_ms=1500.0,
)


class Shop:
    kind: Kind = "agent"
    name = "shop"
    implied: tuple[Assertion, ...] = ()

    async def run(self, case: Case, *, live: bool) -> Outcome:
        return OUTCOME

    def schema(self, schema_id: str) -> dict[str, Any] | None:
        return {"type": "string"} if schema_id == "text" else None

    def function(self, name: str) -> Any:
        return {"m:good": lambda _: None, "m:bad": lambda one: one["status"] == "failed",
                "m:says": lambda one: f"{len(one['tool_calls'])} calls", "m:late": late}[name]  # fmt: skip


async def late(outcome: dict[str, Any]) -> bool:
    return bool(outcome["cost_usd"] < 1)


async def judge(rubric: str, case: Case, outcome: Outcome, model: str) -> Verdict:
    if model == "away:model":
        raise ProviderUnavailable("The model is away.")
    return Verdict(rubric == "good", "the price is missing", model)


async def found(tmp_path: Path, **assertion: Any) -> str:
    case = Case("all", EvaluationCase(id="one"), tmp_path, judge="file:model")
    result = await check(
        Assertion.model_validate_json(json.dumps(assertion)), Checked(case, OUTCOME, Shop(), judge)
    )
    assert result.passed is (result.message == "")
    return result.message


@pytest.mark.parametrize(
    ("assertion", "says"),
    [
        ({"type": "status", "expected": "completed"}, ""),
        ({"type": "status", "expected": "failed"}, "status is 'completed', expected"),
        ({"type": "equals", "field_path": "items.0.price", "expected": 5}, ""),
        ({"type": "equals", "field_path": "items.1.price", "expected": 5}, "items.1.price is missing"),
        ({"type": "contains", "field_path": "text", "expected": "5 EUR"}, ""),
        ({"type": "contains", "field_path": "text", "expected": "USD"}, 'is "It costs 5 EUR.", expected'),
        ({"type": "regex", "field_path": "text", "expected": r"\d+ EUR"}, ""),
        ({"type": "regex", "expected": r'"price":5'}, ""),
        ({"type": "regex", "field_path": "text", "expected": r"^\d"}, "text is"),
        ({"type": "regex", "expected": "("}, "could not be checked"),
        ({"type": "path", "expected": ["ask", "answer"]}, ""),
        ({"type": "path", "expected": ["ask"]}, "path is ['ask', 'answer'], expected"),
        ({"type": "schema", "schema": {"type": "object", "required": ["text"]}}, ""),
        ({"type": "schema", "schema": "text", "field_path": "text"}, ""),
        ({"type": "schema_valid", "schema": "text"}, 'is not of type "string"'),
        ({"type": "schema", "schema": "number.json", "field_path": "items.0.price"}, ""),
        ({"type": "schema", "schema": "none"}, "could not be checked: unknown schema 'none'"),
        ({"type": "golden", "file": "golden.json", "ignore": ["run_id"]}, ""),
        ({"type": "golden", "file": "golden.json"}, 'run_id: "run_1" instead of "run_0"'),
        ({"type": "golden", "file": "none.json"}, "write it there: {"),
        ({"type": "tool_called", "tool": "price", "arguments": {"item": "tea"}}, ""),
        ({"type": "tool_called", "tool": "note"}, ""),
        ({"type": "tool_called", "tool": "price", "arguments": {"item": "cup"}}, 'expected price {"item"'),
        ({"type": "tool_called", "tool": "buy"}, "expected buy"),
        ({"type": "no_tool_called", "tool": "buy"}, ""),
        ({"type": "no_tool_called"}, 'calls are price {"item":"tea","currency":"EUR"}; note "no json"'),
        ({"type": "cost_below", "expected": 0.01}, ""),
        ({"type": "cost_below", "expected": 0.001}, "cost is 0.002 USD, limit 0.001"),
        ({"type": "latency_below", "expected": 2}, ""),
        ({"type": "latency_below", "expected": 1.5}, "latency is 1.500 s, limit 1.5"),
        ({"type": "latency_below"}, "could not be checked"),
        ({"type": "judge", "rubric": "good"}, ""),
        ({"type": "judge", "rubric": "other"}, "the price is missing"),
        ({"type": "judge", "rubric": "good", "model": "away:model"}, "be checked: The model is away."),
        ({"type": "judge"}, "could not be checked: judge needs a rubric"),
        ({"type": "function", "function": "m:good"}, ""),
        ({"type": "function", "function": "m:late"}, ""),
        ({"type": "function", "function": "m:bad"}, "m:bad returned False"),
        ({"type": "function", "function": "m:says"}, "2 calls"),
        ({"type": "function", "function": "m:none"}, "could not be checked"),
        ({"type": "contains", "field_path": "text.none", "expected": "x"}, "text.none is missing"),
        ({"type": "regex", "field_path": "items.-1", "expected": "missing"}, "items.-1 is missing"),
        ({"type": "tool_called"}, ""),
        ({"type": "tool_called", "arguments": {"item": "cup"}}, 'expected any tool {"item":"cup"}'),
        ({"type": "tool_called", "tool": "price", "arguments": {"size": None}}, 'expected price {"size"'),
        ({"type": "no_tool_called", "tool": "price"}, "calls are price {"),
        ({"type": "cost_below", "expected": 0.002}, "cost is 0.002 USD, limit 0.002"),
        ({"type": "golden", "file": "list.json", "ignore": ["run_id"]}, "at output.items.0.price: 5 instead"),
        ({"type": "golden", "file": "list.json", "ignore": ["run_id", "price"]}, ""),
        ({"type": "golden", "file": "two.json", "ignore": ["run_id"]}, 'output.items: [{"price":5}] instead'),
        ({"type": "regex", "field_path": "text", "expected": "^It"}, ""),
        ({"type": "golden", "file": "more.json", "ignore": ["run_id", "timestamps"]}, "seen: missing"),
        ({"type": "golden", "file": "less.json", "ignore": ["run_id"]}, '"completed" instead of missing'),
        ({"type": "golden", "file": "times.json", "ignore": ["run_id", "timestamps"]}, ""),
    ],
)  # fmt: skip
async def test_a_check_says_why_it_fails(tmp_path: Path, assertion: dict[str, Any], says: str) -> None:
    golden = {**golden_record(OUTCOME), "run_id": "run_0"}
    files = {
        "golden": golden,
        "list": {**golden, "output": {"text": "It costs 5 EUR.", "items": [{"price": 6}]}},
        "more": {**golden, "seen": 1, "ended_at": 1},
        "two": {**golden, "output": {"text": "It costs 5 EUR.", "items": [{"price": 5}] * 2}},
        "less": {name: value for name, value in golden.items() if name != "status"},
        "times": {**golden, "ended_at": 1},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "number.json").write_text('{"type": "number"}')
    message = await found(tmp_path, **assertion)
    assert says in message and bool(says) is bool(message)


def test_a_golden_file_has_what_a_run_has_led_to() -> None:
    assert golden_record(OUTCOME) == {
        "run_id": "run_1", "agent": "shop", "status": "completed", "output": OUTCOME.output, "error": None,
        "path": ["ask", "answer"],
    }  # fmt: skip


# -- cases ---------------------------------------------------------------------------------------------------


class Priced(Shop):
    """A run costs two cents, or nothing if it is recorded."""

    implied: tuple[Assertion, ...] = (Assertion(type="status", expected="completed"),)

    async def run(self, case: Case, *, live: bool) -> Outcome:
        status = "failed" if case.spec.id == "bad" else "completed"
        error = {"code": "timeout", "message": "Too late."} if status == "failed" else None
        split = {"message": "another prompt"} if case.spec.id == "split" else None
        ids = {"task_id": "t"} if split else {"run_id": f"run_{case.spec.id}"}
        return Outcome(
            ids, status, "5", ("ask",), error=error, cost_usd=0.02, duration_ms=10.0, divergence=split,
            is_live=live,
        )  # fmt: skip


async def costly(rubric: str, case: Case, outcome: Outcome, model: str) -> Verdict:
    return Verdict(True, "", model, 0.01)


def cases(*ids: str, **assertion: Any) -> list[Case]:
    given = (Assertion.model_validate_json(json.dumps(assertion)),) if assertion else ()
    return [Case("all", EvaluationCase(id=one, assertions=given), Path()) for one in ids]


async def test_a_case_passes_with_the_implied_checks_and_without_a_divergence() -> None:
    heard: list[str] = []
    found = await run_cases(
        Priced(), cases("good", "bad", "split"), on_result=lambda one: heard.append(one.case)
    )
    assert heard == ["good", "bad", "split"]
    assert [(one.case, one.passed, one.failures) for one in found.cases] == [
        ("good", True, []),
        ("bad", False, ["status: status is 'failed' (timeout: Too late.), expected \"completed\""]),
        ("split", False, ["another prompt"]),
    ]
    assert [(one.run_id, one.task_id, one.path) for one in found.cases] == [
        ("run_good", "", ("ask",)), ("run_bad", "", ("ask",)), ("", "t", ("ask",)),
    ]  # fmt: skip
    assert not found.passed and found.complete
    own = await run_cases(Priced(), cases("bad", type="status", expected="failed"))
    assert own.passed  # a check of the same type replaces the implied one


async def test_a_report_has_every_run_of_a_case_and_what_was_paid() -> None:
    judged = cases("a", "b", type="judge", rubric="good")
    options = Options(repeat=2, live=True, model="x:y")
    found = await run_cases(Priced(), judged, options, costly)
    assert [(one.case, one.repeat, one.model, one.run_id) for one in found.cases] == [
        ("a", 1, "x:y", "run_a"), ("a", 2, "x:y", "run_a"),
        ("b", 1, "x:y", "run_b"), ("b", 2, "x:y", "run_b"),
    ]  # fmt: skip
    assert found.spent == pytest.approx(4 * 0.03)
    recorded = await run_cases(Priced(), judged, judge=costly)
    assert recorded.spent == pytest.approx(2 * 0.01) and recorded.cases[0].recorded
    report = evaluation_of(Priced(), "eval_1", 5.0, [found, recorded])
    assert (report.name, report.kind, report.passed, report.stopped) == ("shop", "agent", True, "")
    assert report.cost_usd == pytest.approx(0.14) and len(report.cases) == 6


async def test_no_run_begins_when_the_limit_is_spent() -> None:
    found = await run_cases(Priced(), cases("a", "b", "c"), Options(live=True, max_cost_usd=0.04))
    assert [one.case for one in found.cases] == ["a", "b"]
    assert not found.complete and not found.passed
    report = evaluation_of(Priced(), "eval_1", 5.0, [found])
    assert (report.stopped, report.passed) == ("cost_limit", False)


async def test_the_verdict_of_a_judge_is_part_of_the_report(tmp_path: Path) -> None:
    case = Case("all", EvaluationCase(id="one"), tmp_path, judge="file:model")
    result = await check(Assertion(type="judge", rubric="other"), Checked(case, OUTCOME, Shop(), judge))
    assert (result.type, result.passed) == ("judge", False)
    assert result.verdict == Verdict(False, "the price is missing", "file:model")
