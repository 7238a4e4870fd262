"""Reports of evaluations: stored as `evaluations/ID.json` in the data folder, as rows and JUnit, compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import comb
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import orjson
from msgspec import Struct
from msgspec.json import encode

from astromesh.errors import InvalidInput
from astromesh.evaluation.base import CaseResult, Evaluation
from astromesh.storage.private_files import private_file, private_folder
from astromesh.types import JsonObject

FOLDER = "evaluations"
#: BASELINE: the newest report of the same agent or workflow
LAST = "last"
_ID = re.compile(r"eval_[A-Za-z0-9-]{1,64}")
#: a difference that chance makes less often is called significant
SIGNIFICANT = 0.05
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


# -- stored reports ------------------------------------------------------------------------------------------


def store(data_dir: Path, evaluation: Evaluation) -> Path:
    """Writes a report that only this user can read, and returns its file."""
    file = data_dir / FOLDER / f"{evaluation.evaluation_id}.json"
    private_folder(file.parent)
    private_file(file)
    file.write_bytes(report_bytes(evaluation))
    return file


def report_bytes(evaluation: Evaluation) -> bytes:
    return orjson.dumps(evaluation.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def stored(data_dir: Path, name: str = "") -> list[Evaluation]:
    """Returns the reports of an agent or workflow, or all, newest first, without those of other versions."""
    found = []
    for file in (data_dir / FOLDER).glob("eval_*.json"):
        try:
            evaluation = Evaluation.read(file)
        except InvalidInput:
            continue
        if name in ("", evaluation.name):
            found.append(evaluation)
    return sorted(found, key=lambda one: one.started_at, reverse=True)


def find(data_dir: Path, evaluation_id: str) -> Evaluation | None:
    """Returns a stored report by its id, or None."""
    file = data_dir / FOLDER / f"{evaluation_id}.json"
    return Evaluation.read(file) if _ID.fullmatch(evaluation_id) and file.is_file() else None


def baseline(data_dir: Path, reference: str, name: str) -> Evaluation:
    """Returns a report to compare with. Args: reference: a file, an id, or `last`. name: of what it is about.

    Raises:
        InvalidInput: there is none, or the file is not a report.
    """
    if reference == LAST:
        if found := stored(data_dir, name):
            return found[0]
        raise InvalidInput(f"There is no earlier evaluation of {name!r} in {data_dir / FOLDER}.")
    return find(data_dir, reference) or Evaluation.read(Path(reference))


# -- comparison ---------------------------------------------------------------------------------------------


class Change(Struct, frozen=True):
    """A case whose rate of passed runs differs. Args: before, after: passed runs and runs."""

    suite: str
    case: str
    before: tuple[int, int]
    after: tuple[int, int]
    failures: tuple[str, ...] = ()


class Comparison(Struct, frozen=True):
    """What changed between two lists of results, over the cases of both.

    Args:
        title: what is compared with what.
        same: cases with the same rate.
        only_before, only_after: cases that one of them has.
        p_value: how often chance alone makes a difference that is as unlikely, 0 to 1.
        cost_usd, seconds: of all runs of these cases on average, before and after.
    """

    title: str
    better: tuple[Change, ...]
    worse: tuple[Change, ...]
    same: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    p_value: float
    cost_usd: tuple[float, float]
    seconds: tuple[float, float]

    @property
    def hint(self) -> str:
        """Says in a sentence whether the difference may be chance."""
        if not self.better and not self.worse:
            return "No case differs."
        if self.p_value < SIGNIFICANT:
            return f"The difference is significant (p = {self.p_value:.2g})."
        return f"The difference may be chance (p = {self.p_value:.2g}): more cases or a higher --repeat tell."

    def to_json(self) -> JsonObject:
        data: JsonObject = orjson.loads(encode(self))
        return {**data, "hint": self.hint}


def compare(title: str, before: Iterable[CaseResult], after: Iterable[CaseResult]) -> Comparison:
    """Compares results by suite and case, whichever models they are of."""
    old, new = _by_case(before), _by_case(after)
    both = [(old[key], new[key]) for key in new if key in old]
    changes = [(_rate(b) - _rate(a), _change(a, b)) for a, b in both]
    return Comparison(
        title,
        better=tuple(change for difference, change in changes if difference > 0),
        worse=tuple(change for difference, change in changes if difference < 0),
        same=sum(difference == 0 for difference, _ in changes),
        only_before=tuple("/".join(key) for key in old if key not in new),
        only_after=tuple("/".join(key) for key in new if key not in old),
        p_value=p_value([(a.passed, a.runs, b.passed, b.runs) for a, b in both]),
        cost_usd=(_mean([a.cost_usd for a, _ in both]), _mean([b.cost_usd for _, b in both])),
        seconds=(_mean([a.seconds for a, _ in both]), _mean([b.seconds for _, b in both])),
    )


def comparisons(now: Evaluation, before: Evaluation | None) -> list[Comparison]:
    """Returns how the models of a report differ from its first one, and all of them from an earlier report.

    A model is compared with itself in the earlier report, or with the only model there.
    """
    models = _by_model(now)
    found = []
    if before is not None:
        earlier = _by_model(before)
        only = next(iter(earlier.values())) if len(earlier) == 1 else None
        for model, results in models.items():
            if (known := earlier.get(model, only)) is not None:
                name = f" [{model}]" if model else ""
                found.append(compare(f"{now.name}{name} against {before.evaluation_id}", known, results))
    (first, results), *others = models.items() or [("", [])]
    return [*found, *(compare(f"{other} against {first}", results, more) for other, more in others)]


def p_value(strata: Sequence[tuple[int, int, int, int]]) -> float:
    """Returns the p-value of the number of passed runs after a change, two-sided and exact.

    Given how many runs of a case have passed before and after together, chance distributes them over the
    runs of both (hypergeometric). Of single runs this is the exact test of McNemar.

    Args:
        strata: passed before, runs before, passed after, runs after, for each case.
    """
    distribution = [1.0]
    for passed_before, runs_before, passed_after, runs_after in strata:
        passed, runs = passed_before + passed_after, runs_before + runs_after
        ways = [
            comb(runs_after, x) * comb(runs_before, passed - x) / comb(runs, passed) if x <= passed else 0.0
            for x in range(runs_after + 1)
        ]
        wider = [0.0] * (len(distribution) + len(ways) - 1)
        for i, known in enumerate(distribution):
            for x, way in enumerate(ways):
                wider[i + x] += known * way
        distribution = wider
    observed = distribution[sum(one[2] for one in strata)]
    return min(1.0, sum(one for one in distribution if one <= observed * (1 + 1e-9)))


def _by_model(evaluation: Evaluation) -> dict[str, list[CaseResult]]:
    found: dict[str, list[CaseResult]] = {}
    for one in evaluation.cases:
        found.setdefault(one.model, []).append(one)
    return found


def _by_case(results: Iterable[CaseResult]) -> dict[tuple[str, str], Row]:
    return {(row.suite, row.case): row for row in rows(results)}


def _change(before: Row, after: Row) -> Change:
    runs = (before.passed, before.runs), (after.passed, after.runs)
    return Change(after.suite, after.case, *runs, after.failures)


def _rate(row: Row) -> float:
    return row.passed / row.runs


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
