"""Runs cases and checks their outcomes: one loop for agents and workflows.

An assertion that cannot be checked fails.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import orjson

from astromesh.config.workflow import Assertion
from astromesh.errors import InvalidInput
from astromesh.evaluation.base import (
    DEFAULT_OPTIONS,
    CalledTool,
    Case,
    CaseResult,
    CheckResult,
    Evaluation,
    Judge,
    OnResult,
    Options,
    Outcome,
    Target,
    Verdict,
    golden_record,
)
from astromesh.graph.model_output import OutputSchema
from astromesh.types import JsonObject

#: entry of `ignore` for every key that ends with `_at`
TIMESTAMPS = "timestamps"
_MISSING = object()
_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check looks at."""

    case: Case
    outcome: Outcome
    target: Target
    judge: Judge | None


async def check(assertion: Assertion, checked: Checked) -> CheckResult:
    """Returns the result of a check."""
    try:
        found = _CHECKS[assertion.type](assertion, checked)
        if inspect.isawaitable(found):
            found = await found
    except Exception as error:  # noqa: BLE001 (foreign data: an assertion that cannot be checked fails)
        found = f"could not be checked: {error}"
    if isinstance(found, Verdict):
        return CheckResult(assertion.type, found.passed, "" if found.passed else found.reason, found)
    return CheckResult(assertion.type, not found, found)


# -- checks: each returns why it fails, or an empty text -----------------------------------------------------


def _status(assertion: Assertion, of: Checked) -> str:
    outcome = of.outcome
    why = f" ({outcome.error['code']}: {outcome.error['message']})" if outcome.error else ""
    return _failure_unless(
        outcome.status == assertion.expected, f"status is {outcome.status!r}{why}", assertion
    )


def _equals(assertion: Assertion, of: Checked) -> str:
    found = value_at(of.outcome.output, assertion.field_path)
    return _failure_unless(found == assertion.expected, _finding(assertion, found), assertion)


def _contains(assertion: Assertion, of: Checked) -> str:
    found = value_at(of.outcome.output, assertion.field_path)
    good = found is not _MISSING and assertion.expected in found
    return _failure_unless(good, _finding(assertion, found), assertion)


def _regex(assertion: Assertion, of: Checked) -> str:
    found = value_at(of.outcome.output, assertion.field_path)
    text = found if isinstance(found, str) else _short_json(found)
    good = found is not _MISSING and re.search(str(assertion.expected), text) is not None
    return _failure_unless(good, _finding(assertion, found), assertion)


def _schema_valid(assertion: Assertion, of: Checked) -> str:
    try:
        OutputSchema(dict(_schema_of(assertion, of))).validate(
            value_at(of.outcome.output, assertion.field_path)
        )
    except ValueError as error:
        return str(error)
    return ""


def _schema_of(assertion: Assertion, of: Checked) -> JsonObject:
    schema_id = assertion.schema_id
    if isinstance(schema_id, dict):
        return schema_id
    known = of.target.schema(schema_id)
    file = of.case.folder / schema_id
    if known is None and not (schema_id and file.is_file()):
        raise InvalidInput(f"unknown schema {schema_id!r}")
    schema: JsonObject = orjson.loads(file.read_bytes()) if known is None else known
    return schema


def _matches_golden(assertion: Assertion, of: Checked) -> str:
    file = of.case.folder / assertion.file
    now = _without_keys(golden_record(of.outcome), assertion.ignore)
    if not file.exists():
        outcome = orjson.dumps(now, option=orjson.OPT_NON_STR_KEYS).decode()
        return f"{file} does not exist. To accept this outcome, write it there: {outcome}"
    known = _without_keys(orjson.loads(file.read_bytes()), assertion.ignore)
    return "" if known == now else f"differs from {file.name} at {first_difference(known, now)}"


def _path_equals(assertion: Assertion, of: Checked) -> str:
    path = list(of.outcome.path)
    return _failure_unless(path == assertion.expected, f"path is {path}", assertion)


def _tool_called(assertion: Assertion, of: Checked) -> str:
    calls = [one for one in of.outcome.tool_calls if assertion.tool in ("", one.name)]
    if any(_has_arguments(one, assertion.arguments) for one in calls):
        return ""
    expected = f"{assertion.tool or 'any tool'} {_short_json(assertion.arguments)}"
    return f"calls are {_calls(calls or of.outcome.tool_calls)}, expected {expected}"


def _no_tool_called(assertion: Assertion, of: Checked) -> str:
    calls = [one for one in of.outcome.tool_calls if assertion.tool in ("", one.name)]
    return f"calls are {_calls(calls)}" if calls else ""


def _cost_below(assertion: Assertion, of: Checked) -> str:
    cost = of.outcome.cost_usd
    return "" if cost < float(assertion.expected) else f"cost is {cost:g} USD, limit {assertion.expected}"


def _latency_below(assertion: Assertion, of: Checked) -> str:
    seconds = of.outcome.duration_ms / 1000
    good = seconds < float(assertion.expected)
    return "" if good else f"latency is {seconds:.3f} s, limit {assertion.expected}"


async def _judge(assertion: Assertion, of: Checked) -> Verdict:
    model = assertion.model or of.case.judge
    if of.judge is None:
        raise InvalidInput("judge needs the command `astromesh eval run`")
    if not assertion.rubric:
        raise InvalidInput("judge needs a rubric")
    return await of.judge(assertion.rubric, of.case, of.outcome, model)


async def _function(assertion: Assertion, of: Checked) -> str:
    found = of.target.function(assertion.function)(of.outcome.to_json())
    if inspect.isawaitable(found):
        found = await found
    if found is None or found is True:
        return ""
    return found if isinstance(found, str) else f"{assertion.function} returned {found!r}"


#: what a check returns
Found: TypeAlias = "str | Verdict"
_CHECKS: Mapping[str, Callable[[Assertion, Checked], Found | Awaitable[Found]]] = {
    "status": _status,
    "equals": _equals,
    "contains": _contains,
    "regex": _regex,
    "schema": _schema_valid,
    "schema_valid": _schema_valid,
    "golden": _matches_golden,
    "path": _path_equals,
    "tool_called": _tool_called,
    "no_tool_called": _no_tool_called,
    "cost_below": _cost_below,
    "latency_below": _latency_below,
    "judge": _judge,
    "function": _function,
}


def value_at(value: Any, path: str) -> Any:
    """Returns the value at a dotted path, with numbers for list positions; an empty path is the value."""
    for key in path.split(".") if path else ():
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return _MISSING
    return value


def first_difference(known: Any, now: Any, path: str = "") -> str:
    """Returns the first path at which two values differ, with both values."""
    if isinstance(known, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*known, *now)):
            if known.get(key, _MISSING) != now.get(key, _MISSING):
                return first_difference(
                    known.get(key, _MISSING), now.get(key, _MISSING), f"{path}.{key}".lstrip(".")
                )
    if isinstance(known, list) and isinstance(now, list) and len(known) == len(now):
        i = next(i for i, (a, b) in enumerate(zip(known, now, strict=True)) if a != b)
        return first_difference(known[i], now[i], f"{path}.{i}".lstrip("."))
    return f"{path}: {_short_json(now)} instead of {_short_json(known)}"


def _without_keys(value: Any, ignore: Iterable[str]) -> Any:
    if isinstance(value, Mapping):
        remaining = {k: v for k, v in value.items() if k not in ignore}
        if TIMESTAMPS in ignore:
            remaining = {k: v for k, v in remaining.items() if not k.endswith("_at")}
        return {k: _without_keys(v, ignore) for k, v in remaining.items()}
    return [_without_keys(one, ignore) for one in value] if isinstance(value, list) else value


def _has_arguments(call: CalledTool, expected: Mapping[str, Any]) -> bool:
    arguments = call.arguments
    if not isinstance(arguments, Mapping):
        return not expected
    return all(key in arguments and arguments[key] == value for key, value in expected.items())


def _calls(calls: Iterable[CalledTool]) -> str:
    return "; ".join(f"{one.name} {_short_json(one.arguments)}" for one in calls) or "none"


def _failure_unless(good: bool, actual: str, assertion: Assertion) -> str:
    return "" if good else f"{actual}, expected {_short_json(assertion.expected)}"


def _finding(assertion: Assertion, found: Any) -> str:
    return f"{assertion.field_path or 'output'} is {_short_json(found)}"


def _short_json(value: Any) -> str:
    return "missing" if value is _MISSING else orjson.dumps(value).decode()[:_MAX_SHOWN]


# -- cases ---------------------------------------------------------------------------------------------------


class Results(NamedTuple):
    """Args: spent: US dollars for runs and judges. complete: whether every case ran."""

    cases: tuple[CaseResult, ...]
    spent: float = 0.0
    complete: bool = True

    @property
    def passed(self) -> bool:
        return self.complete and all(one.passed for one in self.cases)


async def run_cases(
    target: Target,
    cases: Sequence[Case],
    options: Options = DEFAULT_OPTIONS,
    judge: Judge | None = None,
    on_result: OnResult = lambda _: None,
) -> Results:
    """Runs cases one after the other, each as often as wanted, until the cost limit is reached."""
    results: list[CaseResult] = []
    spent = 0.0
    for case, number in _runs(cases, options.repeat):
        if spent >= options.max_cost_usd:
            return Results(tuple(results), spent, complete=False)
        outcome = await target.run(case, live=options.live)
        result = await _checked(Checked(case, outcome, target, judge), options.model, number)
        spent += outcome.cost_usd if outcome.is_live else 0.0
        spent += sum(one.verdict.cost_usd for one in result.assertions if one.verdict)
        results.append(result)
        on_result(result)
    return Results(tuple(results), spent)


def evaluation_of(
    target: Target, evaluation_id: str, started_at: float, results: Iterable[Results]
) -> Evaluation:
    """Returns the report of all results, one for each model."""
    results = tuple(results)
    return Evaluation(
        evaluation_id=evaluation_id,
        kind=target.kind,
        name=target.name,
        started_at=started_at,
        passed=all(one.passed for one in results),
        cost_usd=sum(one.spent for one in results),
        stopped="" if all(one.complete for one in results) else "cost_limit",
        cases=tuple(case for one in results for case in one.cases),
    )


def _runs(cases: Sequence[Case], repeat: int) -> Iterable[tuple[Case, int]]:
    return ((case, number + 1) for case in cases for number in range(repeat))


async def _checked(checked: Checked, model: str, number: int) -> CaseResult:
    """A case passes if every assertion holds and its replay did not diverge."""
    case, outcome = checked.case, checked.outcome
    types = {one.type for one in case.spec.assertions}
    implied = [one for one in checked.target.implied if one.type not in types]
    found = [await check(one, checked) for one in (*implied, *case.spec.assertions)]
    return CaseResult(
        suite=case.suite,
        case=case.spec.id,
        run_id=outcome.ids.get("run_id", ""),
        task_id=outcome.ids.get("task_id", ""),
        model=model,
        repeat=number,
        status=outcome.status,
        path=outcome.path,
        output=outcome.output,
        error=outcome.error,
        divergence=outcome.divergence,
        assertions=tuple(found),
        cost_usd=outcome.cost_usd,
        duration_ms=outcome.duration_ms,
        recorded=not outcome.is_live,
        passed=outcome.divergence is None and all(one.passed for one in found),
    )
