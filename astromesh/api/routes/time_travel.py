"""Recorded runs: the steps of a run, and what each one has read and written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from astromesh.api.dependencies import scope
from astromesh.api.requests import MAX_SEQ, runtime_of, viewer_of
from astromesh.api.schemas import UsageOut, problems
from astromesh.types import JsonObject

router = APIRouter(tags=["runs"])
_PROBLEMS = problems(401, 403, 404, 409, 410)
StepNumber = Annotated[int, Path(ge=1, le=MAX_SEQ, description="Number of the step.")]


class StepOut(BaseModel):
    """One step of a run."""

    step: int = Field(description="Number in the run, in the order in which steps end, from 1.")
    path: str = Field(description="Its place: nodes, tool calls and nested runs, divided by `/`.")
    kind: Literal["rule", "memory", "prompt", "model", "tool", "node", "stage"]
    name: str = Field(description="Of the rules, tool or node, or the model that has answered.")
    started_at: float = Field(description="Seconds since the epoch.")
    duration_ms: float
    usage: UsageOut | None = Field(description="Of a model call, or of what a node has called.")


class StepContentOut(StepOut):
    """A step with what it has read and written, as the rules of its agent leave it."""

    input: dict[str, Any] | None = Field(description="A model's request, or the arguments of a tool.")
    output: dict[str, Any] | None = Field(description="null: it is no longer stored.")


class StepsOut(BaseModel):
    run_id: str
    steps: list[StepOut]


@router.get(
    "/v1/runs/{run_id}/steps",
    summary="Steps of a run",
    response_model=StepsOut,
    responses=_PROBLEMS,
    dependencies=[scope("runs:read")],
)
async def steps(run_id: str, request: Request) -> JsonObject:
    """Lists the recorded steps of a run and of its nested runs, in the order in which they ended."""
    found = await runtime_of(request).time_travel.steps(run_id, viewer_of(request))
    return {"run_id": run_id, "steps": found}


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
