"""Runs cases and checks their outcomes: one loop for agents and workflows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from astromesh.evaluation.base import (
    DEFAULT_OPTIONS,
    Case,
    CaseResult,
    Evaluation,
    Judge,
    OnResult,
    Options,
    Target,
)
from astromesh.evaluation.checks import Checked, check


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
