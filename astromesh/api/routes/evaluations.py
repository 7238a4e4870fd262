"""Evaluations: datasets, reports, and cases that are made of runs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from astromesh.api.dependencies import Limit, LongLimit, PageCursor, audited, page, page_behind, scope
from astromesh.api.requests import read_body, runtime_of, viewer_of
from astromesh.api.schemas import Described, problems, request_body
from astromesh.errors import EvaluationNotFound
from astromesh.evaluation.base import Evaluation
from astromesh.evaluation.dataset import ListedDataset, addition, list_datasets
from astromesh.evaluation.reports import comparisons, find, stored
from astromesh.runtime.config_loader import WORKFLOWS_FOLDER, workflow_names
from astromesh.runtime.run_cases import propose_case
from astromesh.types import JsonObject

router = APIRouter(tags=["evaluations"])
Id = Annotated[str, Query(description="Id of another report.")]


class EvaluationOut(Described):
    """A report without its cases."""

    model_config = ConfigDict(extra="allow")

    evaluation_id: str
    kind: Literal["agent", "workflow"]
    name: str = Field(description="Of the agent or workflow.")
    started_at: float = Field(description="Seconds since the epoch.")
    passed: bool
    cost_usd: float
    stopped: Literal["", "cost_limit"]


class CountedOut(EvaluationOut):
    runs: int
    failed: int = Field(description="Runs that did not pass.")


class EvaluationsOut(Described):
    evaluations: list[CountedOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class ReportOut(EvaluationOut):
    cases: list[dict[str, Any]]
    comparisons: list[dict[str, Any]] | None = Field(
        None, description="With `compare`: what is better and worse, for each model."
    )


class DatasetCaseOut(Described):
    suite: str
    id: str
    input: Any = None
    recorded: bool = Field(description="Whether it runs from a recording.")
    checks: list[str] = Field(description="Types of its checks.")


class DatasetOut(Described):
    kind: Literal["agent", "workflow"]
    owner: str = Field(description="The agent or the workflow.")
    name: str
    cases: list[DatasetCaseOut]
    fault: str = Field(description="Why the file cannot be read, else empty.")


class DatasetsOut(Described):
    datasets: list[DatasetOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class CaseBody(BaseModel):
    """Where a case of a run goes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dataset: str = Field("", description="Name in `evals/`; empty: that of the agent or workflow.")
    id: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,64}$", description="Of the case; empty: that of the run.")
    write: bool = Field(False, description="Whether the files are written, not only shown.")


class CaseOut(Described):
    """A case of a run."""

    dataset: str = Field(description="Name of the file.")
    added: str = Field(description="The text that the file gets.")
    recording: dict[str, Any] | None = Field(description="Recorded answers of models and tools.")
    note: str
    written: bool


_CASE: TypeAdapter[CaseBody] = TypeAdapter(CaseBody)


@router.get(
    "/v1/evaluations",
    summary="Reports of evaluations",
    response_model=EvaluationsOut,
    responses=problems(401, 403, 422),
    dependencies=[scope("evaluations:read")],
)
async def evaluations(request: Request, cursor: PageCursor, name: str = "", limit: Limit = 50) -> JsonObject:
    """Lists the stored reports of an agent or workflow, or all, newest first."""
    found = await asyncio.to_thread(stored, runtime_of(request).data_dir, name)
    listed, more = page_behind(found, lambda one: one.evaluation_id, limit, cursor)
    return {"evaluations": [_counted(one) for one in listed], "next": more}


@router.get(
    "/v1/evaluations/{evaluation_id}",
    summary="One report",
    response_model=ReportOut,
    responses=problems(401, 403, 404, 422),
    dependencies=[scope("evaluations:read")],
)
async def evaluation(evaluation_id: str, request: Request, compare: Id = "") -> JsonObject:
    """Returns a report with every run of every case."""
    found = await _report(request, evaluation_id)
    if not compare:
        return found.to_json()
    compared = comparisons(found, await _report(request, compare))
    return {**found.to_json(), "comparisons": [one.to_json() for one in compared]}


@router.get(
    "/v1/datasets",
    summary="Datasets",
    response_model=DatasetsOut,
    responses=problems(401, 403),
    dependencies=[scope("evaluations:read")],
)
async def datasets(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the datasets of agents and workflows by owner and name as they are on disk, with their faults."""
    config = runtime_of(request).config_dir
    folders = {name: config / WORKFLOWS_FOLDER / name for name in workflow_names(config)}
    found = await asyncio.to_thread(list_datasets, config, folders)
    listed, more = page(found, lambda one: f"{one.kind} {one.owner} {one.name}", limit, cursor)
    return {"datasets": [_dataset_json(one) for one in listed], "next": more}


@router.post(
    "/v1/runs/{run_id}/case",
    summary="Make a case of a run",
    response_model=CaseOut,
    openapi_extra=request_body(CaseBody),
    responses=problems(401, 403, 404, 409, 410, 413, 422, 503),
    dependencies=[audited("run.case", "run_id"), scope("evaluations:write")],
)
async def case(run_id: str, request: Request) -> JsonObject:
    """Shows what a dataset gets for a run or Task that has ended, and writes it if `write` says so."""
    body = await read_body(request, _CASE)
    proposed = await propose_case(runtime_of(request), run_id, viewer_of(request), body.id)
    change = await asyncio.to_thread(addition, proposed, body.dataset)
    if body.write:
        await asyncio.to_thread(change.write)
    return {
        "dataset": change.file.name, "added": change.added, "recording": proposed.recording,
        "note": proposed.note, "written": body.write,
    }  # fmt: skip


async def _report(request: Request, evaluation_id: str) -> Evaluation:
    found = await asyncio.to_thread(find, runtime_of(request).data_dir, evaluation_id)
    if found is None:
        raise EvaluationNotFound(f"There is no evaluation {evaluation_id!r}.")
    return found


def _counted(one: Evaluation) -> JsonObject:
    failed = sum(not case.passed for case in one.cases)
    data = one.to_json()
    del data["cases"]
    return {**data, "runs": len(one.cases), "failed": failed}


def _dataset_json(one: ListedDataset) -> JsonObject:
    cases = [
        {
            "suite": case.suite, "id": case.spec.id, "input": case.spec.input,
            "recorded": case.recording is not None, "checks": [check.type for check in case.spec.assertions],
        }
        for case in one.cases
    ]  # fmt: skip
    return {**one._asdict(), "cases": cases}
