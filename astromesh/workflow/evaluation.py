"""Evaluates the result of a Task against a case of evaluations.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from astromesh.config.workflow.operations import Assertion, EvaluationCase, EvaluationsFile
from astromesh.errors import InvalidInput
from astromesh.graph.structured_output import OutputSchema
from astromesh.types import JsonObject
from astromesh.workflow.base import TaskResult
from astromesh.workflow.project import Project

#: entry of `ignore` for every key that ends with `_at`
TIMESTAMPS = "timestamps"
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Case:
    """A case with the name of its suite."""

    suite: str
    spec: EvaluationCase


def select_cases(project: Project, suite: str = "", tag: str = "") -> list[Case]:
    """Returns the cases of a workflow, of one suite, or of the suites with a tag.

    Raises:
        InvalidInput: no suite matches.
    """
    suites = project.files.file(EvaluationsFile).suites
    wanted = [one for one in suites if suite in ("", one.name) and (not tag or tag in one.tags)]
    if not wanted:
        known = ", ".join(one.name for one in suites) or "none"
        raise InvalidInput(f"{project.name!r} has no such suite in evaluations.yaml. Known suites: {known}.")
    return [Case(one.name, case) for one in wanted for case in one.cases]


def evaluate_case(
    project: Project, case: Case, result: TaskResult, divergence: JsonObject | None
) -> JsonObject:
    """Returns a case's report: it passes if every assertion holds and its replay did not diverge."""
    checked = [_check_assertion(project, assertion, result) for assertion in case.spec.assertions]
    return {
        "suite": case.suite, "case": case.spec.id, "task_id": result.task_id, "status": result.status,
        "path": list(result.path), "divergence": divergence, "assertions": checked,
        "passed": divergence is None and all(one["passed"] for one in checked),
    }  # fmt: skip


def golden_record(result: TaskResult) -> JsonObject:
    """Returns the content of a golden file."""
    return {
        "task_id": result.task_id, "workflow": result.workflow, "status": result.status,
        "output": result.output, "error": result.error, "path": list(result.path),
    }  # fmt: skip


def _check_assertion(project: Project, assertion: Assertion, result: TaskResult) -> JsonObject:
    try:
        why = _CHECKS[assertion.type](project, assertion, result)
    except Exception as error:  # noqa: BLE001 (foreign data: an assertion that cannot be checked fails)
        why = f"could not be checked: {error}"
    return {"type": assertion.type, "passed": not why, "message": why}


# -- checks: each returns why it fails, or an empty text -----------------------------------------------------


def _status(project: Project, assertion: Assertion, result: TaskResult) -> str:
    return _failure_unless(result.status == assertion.expected, f"status is {result.status!r}", assertion)


def _equals(project: Project, assertion: Assertion, result: TaskResult) -> str:
    found = value_at(result.output, assertion.field_path)
    return _failure_unless(
        found == assertion.expected, f"{assertion.field_path} is {_short_json(found)}", assertion
    )


def _contains(project: Project, assertion: Assertion, result: TaskResult) -> str:
    found = value_at(result.output, assertion.field_path)
    good = found is not _MISSING and assertion.expected in found
    return _failure_unless(good, f"{assertion.field_path} is {_short_json(found)}", assertion)


def _schema_valid(project: Project, assertion: Assertion, result: TaskResult) -> str:
    schema = project.schema(assertion.schema_id)
    if schema is None:
        return f"unknown schema {assertion.schema_id!r}"
    try:
        OutputSchema(dict(schema)).validate(value_at(result.output, assertion.field_path))
    except ValueError as error:
        return str(error)
    return ""


def _matches_golden(project: Project, assertion: Assertion, result: TaskResult) -> str:
    file = project.folder / assertion.file
    known = _without_keys(orjson.loads(file.read_bytes()), assertion.ignore)
    now = _without_keys(golden_record(result), assertion.ignore)
    return "" if known == now else f"differs from {file.name} at {first_difference(known, now)}"


def _path_equals(project: Project, assertion: Assertion, result: TaskResult) -> str:
    return _failure_unless(list(result.path) == assertion.expected, f"path is {list(result.path)}", assertion)


_CHECKS: Mapping[str, Callable[[Project, Assertion, TaskResult], str]] = {
    "status": _status,
    "equals": _equals,
    "contains": _contains,
    "schema_valid": _schema_valid,
    "golden": _matches_golden,
    "path": _path_equals,
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


def _failure_unless(good: bool, actual: str, assertion: Assertion) -> str:
    return "" if good else f"{actual}, expected {_short_json(assertion.expected)}"


def _short_json(value: Any) -> str:
    return "missing" if value is _MISSING else orjson.dumps(value).decode()[:200]
