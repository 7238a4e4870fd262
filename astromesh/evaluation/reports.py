"""Stored reports: `evaluations/ID.json` in the data folder, and what became better or worse between two."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import comb
from pathlib import Path

import orjson
from msgspec import Struct
from msgspec.json import encode

from astromesh.errors import InvalidInput
from astromesh.evaluation.base import CaseResult, Evaluation
from astromesh.evaluation.formats import Row, rows
from astromesh.storage.private_files import private_file, private_folder
from astromesh.types import JsonObject

FOLDER = "evaluations"
#: BASELINE: the newest report of the same agent or workflow
LAST = "last"
_ID = re.compile(r"eval_[A-Za-z0-9-]{1,64}")
#: a difference that chance makes less often is called significant
SIGNIFICANT = 0.05


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


# -- comparison ----------------------------------------------------------------------------------------------


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
