"""Reports for other programs and for people: JUnit XML, rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from astromesh.evaluation.base import CaseResult, Evaluation

#: control characters that XML 1.0 cannot hold become spaces
_PLAIN = {ord(one): " " for one in map(chr, range(32)) if one not in "\t\n\r"}


class Row(NamedTuple):
    """All runs of one case with one model.

    Args:
        cost_usd, seconds: of one run, on average.
        failures: the different reasons, in order.
    """

    suite: str
    case: str
    model: str
    runs: int
    passed: int
    cost_usd: float
    seconds: float
    failures: tuple[str, ...]

    @property
    def all_passed(self) -> bool:
        return self.passed == self.runs


def rows(results: Iterable[CaseResult]) -> list[Row]:
    """Returns one row for each case and model, in their order."""
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for one in results:
        groups.setdefault((one.suite, one.case, one.model), []).append(one)
    return [_row(key, group) for key, group in groups.items()]


def _row(key: tuple[str, str, str], group: Sequence[CaseResult]) -> Row:
    count = len(group)
    return Row(
        *key,
        runs=count,
        passed=sum(one.passed for one in group),
        cost_usd=sum(one.cost_usd for one in group) / count,
        seconds=sum(one.duration_ms for one in group) / count / 1000,
        failures=tuple(dict.fromkeys(why for one in group for why in one.failures)),
    )


def junit(evaluation: Evaluation) -> bytes:
    """Returns the report as JUnit XML: a testsuite for each suite and model, a testcase for each run."""
    root = ET.Element("testsuites", name=_xml(evaluation.name))
    suites: dict[tuple[str, str], list[CaseResult]] = {}
    for one in evaluation.cases:
        suites.setdefault((one.suite, one.model), []).append(one)
    for (suite, model), results in suites.items():
        name = f"{suite} [{model}]" if model else suite
        element = ET.SubElement(
            root,
            "testsuite",
            name=_xml(name),
            tests=str(len(results)),
            failures=str(sum(not one.passed for one in results)),
            time=_seconds(sum(one.duration_ms for one in results)),
        )
        for one in results:
            _add_case(element, f"{evaluation.name}.{name}", one)
    if evaluation.stopped:
        stopped = ET.SubElement(root, "testsuite", name=evaluation.stopped, tests="1", failures="1")
        case = ET.SubElement(stopped, "testcase", classname=_xml(evaluation.name), name=evaluation.stopped)
        ET.SubElement(case, "failure", message="The cost limit was reached before the last case.")
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _add_case(suite: ET.Element, classname: str, one: CaseResult) -> None:
    name = one.case if one.repeat == 1 else f"{one.case} #{one.repeat}"
    element = ET.SubElement(
        suite, "testcase", classname=_xml(classname), name=_xml(name), time=_seconds(one.duration_ms)
    )
    if not one.passed:
        failures = one.failures
        failure = ET.SubElement(element, "failure", message=_xml(failures[0] if failures else one.status))
        failure.text = _xml("\n".join(failures))


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.3f}"


def _xml(text: str) -> str:
    return text.translate(_PLAIN).encode("utf-8", "replace").decode()
