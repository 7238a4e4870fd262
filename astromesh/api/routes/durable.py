"""Durable runs: accepted for good, and what waits for a person."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from astromesh.api.access import caller_of, runtime_of, viewer_of
from astromesh.api.asked import RunBody
from astromesh.api.audit import add_detail
from astromesh.api.body import run_asked
from astromesh.api.declared import audited, scope
from astromesh.api.idempotency import name_of
from astromesh.api.running import links
from astromesh.api.schemas import RunStateOut, problems, takes
from astromesh.runtime.stored_runs import Said
from astromesh.types import JsonObject

router = APIRouter(tags=["runs"])


class LinksOut(BaseModel):
    self: str
    events: str
    cancel: str


class AcceptedOut(BaseModel):
    """A run that survives whatever happens from here on."""

    run_id: str
    status: Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
    links: LinksOut


class WaitingOut(BaseModel):
    """A run that somebody waited for has paused."""

    run_id: str
    status: Literal["waiting"]
    waiting_for: dict[str, Any]
    links: LinksOut


class DecisionBody(BaseModel):
    """What a person decides."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision: Literal["approve", "deny", "answer"]
    arguments: dict[str, Any] | None = Field(None, description="Of an approved call, instead of the model's.")
    answer: Any = Field(None, description="Of the decision `answer`, which needs one.")


class ApprovalOut(BaseModel):
    model_config = ConfigDict(extra="allow")

    run_id: str
    agent: str
    session_id: str
    asking_agent: str = Field(description="Whose call or node it is: the run's own, or one nested in it.")
    kind: Literal["approval", "unknown_outcome", "human", "identity"]
    name: str = Field(description="Of the tool or node.")
    arguments: Any
    asked_at: float
    expires_at: float


class ApprovalsOut(BaseModel):
    approvals: list[ApprovalOut]


@router.post(
    "/v1/agents/{name}/runs",
    summary="Accept a durable run",
    status_code=202,
    response_model=AcceptedOut,
    openapi_extra=takes(RunBody),
    responses=problems(401, 403, 404, 413, 422, 503),
    dependencies=[scope("agents:run", "name")],
)
async def accept(name: str, request: Request) -> Response:
    """Answered when the run is on disk: from then on it ends, whatever dies meanwhile."""
    runtime = runtime_of(request)
    agent = runtime.agent(name)
    asked = await run_asked(request)
    row = await runtime.accept(agent, asked, caller=caller_of(request), key=await name_of(request))
    # who sends it again, with its key, gets the same answer; what became of the run is asked for by its id
    answer = {"run_id": row.run_id, "status": "queued", "links": links(row.run_id)}
    return Response(orjson.dumps(answer), 202, media_type="application/json")


@router.get(
    "/v1/approvals",
    summary="What waits for a person",
    response_model=ApprovalsOut,
    dependencies=[scope("runs:read")],
)
async def approvals(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JsonObject:
    """Questions of the caller's runs that wait, the oldest first."""
    found = await runtime_of(request).runs.approvals(viewer_of(caller_of(request)), limit)
    return {"approvals": found}


@router.post(
    "/v1/runs/{run_id}/resume",
    summary="Decide for a run that waits",
    response_model=RunStateOut,
    response_model_exclude_unset=True,
    responses=problems(401, 403, 404, 409, 422, 503),
    dependencies=[audited("run.decide", "run_id"), scope("runs:decide")],
)
async def resume(run_id: str, body: DecisionBody, request: Request) -> JsonObject:
    """The run goes on with the decision; who made it is kept with the run."""
    caller = caller_of(request)
    add_detail(request, body.decision)
    said = Said(body.decision, body.arguments, body.answer)
    return await runtime_of(request).runs.resume(run_id, viewer_of(caller), caller, said)
