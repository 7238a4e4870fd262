"""Whether a Task came to what a case of evaluations.yaml expects (workflow.md E58)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from astromesh.config.workflow.operations import Assertion, EvaluationCase, EvaluationsFile
from astromesh.errors import InvalidInput
from astromesh.graph.output_schema import OutputSchema
from astromesh.types import JsonObject
from astromesh.workflow.project import Project
from astromesh.workflow.result import TaskResult

#: in `ignore`: every key that ends with `_at`
TIMESTAMPS = "timestamps"
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Case:
    """A case with the suite that it stands in."""

    suite: str
    spec: EvaluationCase


def cases_of(project: Project, suite: str = "", tag: str = "") -> list[Case]:
    """The cases of a workflow; of one suite, or of those with a tag.

    Raises:
        InvalidInput: there are none.
    """
    suites = project.files.file("evaluations.yaml", EvaluationsFile).suites
    wanted = [one for one in suites if suite in ("", one.name) and (not tag or tag in one.tags)]
    if not wanted:
        known = ", ".join(one.name for one in suites) or "none"
        raise InvalidInput(f"{project.name!r} has no such suite in evaluations.yaml; known: {known}.")
    return [Case(one.name, case) for one in wanted for case in one.cases]


def judged(project: Project, case: Case, result: TaskResult, divergence: JsonObject | None) -> JsonObject:
    """A case's report: it passes iff no assertion failed or could not be checked, and it did not diverge."""
    checked = [_checked(project, assertion, result) for assertion in case.spec.assertions]
    return {
        "suite": case.suite, "case": case.spec.id, "task_id": result.task_id, "status": result.status,
        "path": list(result.path), "divergence": divergence, "assertions": checked,
        "passed": divergence is None and all(one["passed"] for one in checked),
    }  # fmt: skip


def golden_of(result: TaskResult) -> JsonObject:
    """What a golden file holds."""
    return {
        "task_id": result.task_id, "workflow": result.workflow, "status": result.status,
        "output": result.output, "error": result.error, "path": list(result.path),
    }  # fmt: skip


def _checked(project: Project, assertion: Assertion, result: TaskResult) -> JsonObject:
    try:
        why = _CHECKS[assertion.type](project, assertion, result)
    except Exception as error:  # noqa: BLE001 (the border of an assertion: what cannot be checked has failed)
        why = f"could not be checked: {error}"
    return {"type": assertion.type, "passed": not why, "message": why}


# -- the checks: why it fails, or an empty text --------------------------------------------------------------


def _status(project: Project, assertion: Assertion, result: TaskResult) -> str:
    return _unless(result.status == assertion.expected, f"status is {result.status!r}", assertion)


def _equals(project: Project, assertion: Assertion, result: TaskResult) -> str:
    found = at(result.output, assertion.field_path)
    return _unless(found == assertion.expected, f"{assertion.field_path} is {_shown(found)}", assertion)


def _contains(project: Project, assertion: Assertion, result: TaskResult) -> str:
    found = at(result.output, assertion.field_path)
    good = found is not _MISSING and assertion.expected in found
    return _unless(good, f"{assertion.field_path} is {_shown(found)}", assertion)


def _schema_valid(project: Project, assertion: Assertion, result: TaskResult) -> str:
    schema = project.schema(assertion.schema_id)
    if schema is None:
        return f"there is no schema {assertion.schema_id!r}"
    try:
        OutputSchema(dict(schema)).validate(at(result.output, assertion.field_path))
    except ValueError as error:
        return str(error)
    return ""


def _golden(project: Project, assertion: Assertion, result: TaskResult) -> str:
    file = project.folder / assertion.file
    known = _without(orjson.loads(file.read_bytes()), assertion.ignore)
    now = _without(golden_of(result), assertion.ignore)
    return "" if known == now else f"differs from {file.name} at {difference(known, now)}"


def _path(project: Project, assertion: Assertion, result: TaskResult) -> str:
    return _unless(list(result.path) == assertion.expected, f"path is {list(result.path)}", assertion)


_CHECKS: Mapping[str, Callable[[Project, Assertion, TaskResult], str]] = {
    "status": _status,
    "equals": _equals,
    "contains": _contains,
    "schema_valid": _schema_valid,
    "golden": _golden,
    "path": _path,
}


def at(value: Any, path: str) -> Any:
    """What stands at a dotted path, numbers for lists; the whole where the path is empty."""
    for key in path.split(".") if path else ():
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return _MISSING
    return value


def difference(known: Any, now: Any, path: str = "") -> str:
    """The first place where two values differ."""
    if isinstance(known, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*known, *now)):
            if known.get(key, _MISSING) != now.get(key, _MISSING):
                return difference(
                    known.get(key, _MISSING), now.get(key, _MISSING), f"{path}.{key}".lstrip(".")
                )
    if isinstance(known, list) and isinstance(now, list) and len(known) == len(now):
        i = next(i for i, (a, b) in enumerate(zip(known, now, strict=True)) if a != b)
        return difference(known[i], now[i], f"{path}.{i}".lstrip("."))
    return f"{path}: {_shown(now)} instead of {_shown(known)}"


def _without(value: Any, ignore: Iterable[str]) -> Any:
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if k not in ignore}
        if TIMESTAMPS in ignore:
            kept = {k: v for k, v in kept.items() if not k.endswith("_at")}
        return {k: _without(v, ignore) for k, v in kept.items()}
    return [_without(one, ignore) for one in value] if isinstance(value, list) else value


def _unless(good: bool, said: str, assertion: Assertion) -> str:
    return "" if good else f"{said}, expected {_shown(assertion.expected)}"


def _shown(value: Any) -> str:
    return "missing" if value is _MISSING else orjson.dumps(value).decode()[:200]
