"""Recorded runs: the steps of a run, what each one has read and written, and forks at a step."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from fastapi import APIRouter, Path, Request, Response
from fastapi import Query as QueryParameter
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from astromesh.access.scopes import RUN
from astromesh.api.dependencies import LongLimit, PageCursor, audited, scope, steps_page
from astromesh.api.fast_routes import json_response, links_of
from astromesh.api.requests import (
    MAX_SEQ,
    Query,
    WholeNumber,
    caller_of,
    idempotency_key,
    read_body,
    runtime_of,
    viewer_of,
)
from astromesh.api.schemas import Described, ForkedFromOut, LinksOut, UsageOut, problems, request_body
from astromesh.durable.base import RunStatus
from astromesh.durable.fork import Edit
from astromesh.durable.run_registry import shown_origin
from astromesh.durable.step_view import EditKind
from astromesh.runtime.time_travel import ForkRequest
from astromesh.types import JsonObject

router = APIRouter(tags=["runs"])
_PROBLEMS = problems(401, 403, 404, 409, 410)
RunId = Annotated[str, QueryParameter(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
StepNumber = Annotated[int, Path(ge=1, le=MAX_SEQ, description="Number of the step.")]


class StepOut(Described):
    """One step of a run."""

    step: int = Field(description="Number in the run, in the order in which steps end, from 1.")
    path: str = Field(description="Its place: nodes, tool calls and nested runs, divided by `/`.")
    kind: Literal["rule", "memory", "prompt", "model", "tool", "node", "stage"]
    name: str = Field(description="Of the rules, tool or node, or the model that has answered.")
    started_at: float = Field(description="Seconds since the epoch.")
    duration_ms: float
    usage: UsageOut | None = Field(description="Of a model call, or of what a node has called.")
    editable: list[EditKind] = Field(description="What a fork at this step can edit.")


class StepContentOut(StepOut):
    """A step with what it has read and written, as the rules of its agent leave it."""

    input: dict[str, Any] | None = Field(description="A model's request, or the arguments of a tool.")
    output: dict[str, Any] | None = Field(description="null: it is no longer stored.")


class StepsOut(Described):
    run_id: str
    steps: list[StepOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class OneEdit(BaseModel):
    """Exactly one edit."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"minProperties": 1, "maxProperties": 1}
    )

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"must have exactly one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def edit(self) -> Edit:
        (kind,) = self.model_fields_set
        return Edit(cast("EditKind", kind), getattr(self, kind))


class EditBody(OneEdit):
    """Exactly one edit."""

    query: Query | None = Field(None, description="At the input rules.")
    system: str | None = Field(None, description="The system message, from here on.")
    message: Query | None = Field(None, description="A user message at the end of a model's request.")
    tool_result: Any = Field(None, description="What a tool returns instead.")
    output: Any = Field(
        None, description="Of a model: a text, or `{content?, tool_calls?}`; of a node: any value."
    )
    state: dict[str, Any] | None = Field(None, description="Written to the state after a node.")
    model: str | dict[str, Any] | None = Field(
        None,
        description="From here on: a name, `provider:name`, or `{provider, model, parameters}`.",
    )
    manifest: Literal["current"] | None = Field(None, description="The present manifest, from here on.")


class ForkBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    at: WholeNumber = Field(description="Number of the step that the fork continues at.")
    edit: EditBody | None = Field(None, description="What is different; absent: nothing.")
    session: Literal["new", "same"] | None = Field(
        None, description="Which session the turns are written to; absent: none."
    )


class ForkedOut(Described):
    """A fork that is on disk."""

    run_id: str
    status: RunStatus
    forked_from: ForkedFromOut
    links: LinksOut


_FORK: TypeAdapter[ForkBody] = TypeAdapter(ForkBody)


@router.post(
    "/v1/runs/{run_id}/fork",
    summary="Fork a run at a step",
    status_code=202,
    response_model=ForkedOut,
    openapi_extra=request_body(ForkBody),
    responses=problems(401, 403, 404, 409, 410, 413, 422, 503),
    dependencies=[audited("run.fork", "run_id"), scope(RUN, any_resource=True)],
)
async def fork(run_id: str, request: Request) -> Response:
    """Accepts a durable run that has the steps before `at`, and continues from there with the edit."""
    body = await read_body(request, _FORK, '{"at": 3}')
    edit = body.edit.edit if body.edit is not None else None
    fork_request = ForkRequest(body.at, edit, body.session)
    key = await idempotency_key(request)
    travel = runtime_of(request).time_travel
    row = await travel.fork(run_id, viewer_of(request), fork_request, caller_of(request), key)
    links, forked_from = links_of(f"/v1/runs/{row.run_id}"), shown_origin(row.forked_from or {})
    found = {"run_id": row.run_id, "status": "queued", "forked_from": forked_from, "links": links}
    return json_response(found, 202)


class DivergenceOut(Described):
    """Where a replay differs first."""

    step: int | None = Field(description="null: the run has no such step, or it is its end that differs.")
    path: str
    kind: str | None
    name: str
    at: str = Field(description="Place of the value, e.g. `messages[2].content`.")
    recorded: Any
    replayed: Any


class ReplayOut(Described):
    run_id: str
    reproduced: bool
    compared: int = Field(description="Requests, arguments, prompts, nodes and answers that were compared.")
    divergence: DivergenceOut | None


@router.post(
    "/v1/runs/{run_id}/replay",
    summary="Replay a run",
    response_model=ReplayOut,
    responses=_PROBLEMS,
    dependencies=[scope("runs:read")],
)
async def replay(run_id: str, request: Request) -> JsonObject:
    """Makes a run again from its record, without any call, and names the first difference."""
    return await runtime_of(request).time_travel.replay(run_id, viewer_of(request))


@router.delete(
    "/v1/runs/{run_id}/steps",
    summary="Delete the steps of a run",
    status_code=204,
    responses=_PROBLEMS,
    dependencies=[audited("run.delete_steps", "run_id"), scope("runs:write")],
)
async def delete_steps(run_id: str, request: Request) -> None:
    """Deletes the record of a run that has ended. The run and its answer stay."""
    await runtime_of(request).time_travel.delete_recording(run_id, viewer_of(request))


class StepNumbersOut(Described):
    step: int
    duration_ms: float
    usage: UsageOut | None


class ComparedStepOut(Described):
    """Steps of one kind, place and name."""

    kind: str
    path: str
    name: str
    equal: bool = Field(description="Whether all runs have the step, with the same content.")
    a: StepNumbersOut | None
    b: StepNumbersOut | None
    c: StepNumbersOut | None = None
    diff: dict[str, str] = Field(description="By run: how its content differs from that of `a`.")


class ComparedTotals(Described):
    model_calls: int
    tool_calls: int
    usage: UsageOut = Field(description="Of all its model calls; a fork has those before its step, too.")
    latency_ms: float | None = Field(description="From its start to its end; null: it has not ended.")


class ComparedRunOut(ComparedTotals):
    run_id: str
    agent: str
    status: RunStatus
    response: str | None


class ComparisonOut(Described):
    runs: dict[str, ComparedRunOut] = Field(description="By `a`, `b` and `c`.")
    steps: list[ComparedStepOut]
    divergence: ComparedStepOut | None = Field(description="The first step that is not equal.")


@router.get(
    "/v1/runs/compare",
    summary="Compare runs",
    response_model=ComparisonOut,
    response_model_exclude_unset=True,
    responses={**_PROBLEMS, **problems(422)},
    dependencies=[scope("runs:read")],
)
async def compare(a: RunId, b: RunId, request: Request, c: RunId | None = None) -> JsonObject:
    """Aligns the steps of two or three recorded runs, and shows what differs and what they cost."""
    run_ids = [run_id for run_id in (a, b, c) if run_id]
    return await runtime_of(request).time_travel.compare(run_ids, viewer_of(request))


@router.get(
    "/v1/runs/{run_id}/steps",
    summary="Steps of a run",
    response_model=StepsOut,
    responses=_PROBLEMS,
    dependencies=[scope("runs:read")],
)
async def steps(run_id: str, request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the recorded steps of a run and of its nested runs, in the order in which they ended."""
    found = await runtime_of(request).time_travel.steps(run_id, viewer_of(request))
    return {"run_id": run_id, **steps_page(found, limit, cursor)}


@router.get(
    "/v1/runs/{run_id}/steps/{step}",
    summary="One step of a run",
    response_model=StepContentOut,
    responses=_PROBLEMS,
    dependencies=[scope("runs:read")],
)
async def step(run_id: str, step: StepNumber, request: Request) -> JsonObject:
    """Returns a step with its input and output."""
    return await runtime_of(request).time_travel.step(run_id, step, viewer_of(request))
