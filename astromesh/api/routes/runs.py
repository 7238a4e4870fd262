"""Runs: accept, list, follow, cancel, decide, rate; results that were too long for the model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from astromesh.access.scopes import Viewer, principal_of
from astromesh.api.dependencies import audited, scope
from astromesh.api.errors import public_failure
from astromesh.api.fast_routes import json_response, run_links
from astromesh.api.middleware.audit import add_detail
from astromesh.api.requests import (
    MAX_SEQ,
    RunBody,
    caller_of,
    idempotency_key,
    read_run_request,
    runtime_of,
    viewer_of,
)
from astromesh.api.responses import EventBuffer, EventStreamResponse
from astromesh.api.schemas import RunsOut, RunStateOut, problems, request_body
from astromesh.durable.run_registry import RunFilter
from astromesh.errors import EventsGone
from astromesh.runtime.stored_runs import Decision
from astromesh.tools.result_cache import ResultCache
from astromesh.types import JsonObject, SessionKey

# Durable runs: accepted for good, and what waits for a person.

router = APIRouter(tags=["runs"])


class LinksOut(BaseModel):
    self: str
    events: str
    cancel: str


class AcceptedOut(BaseModel):
    """A run that survives whatever happens from here on."""

    run_id: str
    status: Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
    run_links: LinksOut


class WaitingOut(BaseModel):
    """A run that somebody waited for has paused."""

    run_id: str
    status: Literal["waiting"]
    waiting_for: dict[str, Any]
    run_links: LinksOut


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
    openapi_extra=request_body(RunBody),
    responses=problems(401, 403, 404, 413, 422, 503),
    dependencies=[scope("agents:run", "name")],
)
async def accept(name: str, request: Request) -> Response:
    """Answered when the run is on disk: from then on it ends, whatever dies meanwhile."""
    runtime = runtime_of(request)
    agent = runtime.agent(name)
    asked = await read_run_request(request)
    key = await idempotency_key(request)
    row = await runtime.runner.accept(agent, asked, caller=caller_of(request), key=key)
    # who sends it again, with its key, gets the same answer; what became of the run is asked for by its id
    answer = {"run_id": row.run_id, "status": "queued", "links": run_links(row.run_id)}
    return json_response(answer, 202)


@router.get(
    "/v1/approvals",
    summary="What waits for a person",
    response_model=ApprovalsOut,
    dependencies=[scope("runs:read")],
)
async def approvals(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JsonObject:
    """Questions of the caller's runs that wait, the oldest first."""
    found = await runtime_of(request).runs.approvals(viewer_of(request), limit)
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
    said = Decision(body.decision, body.arguments, body.answer)
    return await runtime_of(request).runs.resume(run_id, viewer_of(request), caller, said)


class FeedbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    rating: Literal[-1, 0, 1] = Field(description="-1 bad, 0 neither, 1 good.")
    comment: str = Field("", max_length=2_000, description="In words; the agent's input rules hold for it.")


@router.post(
    "/v1/runs/{run_id}/feedback",
    summary="Rate a run",
    status_code=204,
    responses=problems(401, 403, 404, 409, 422, 503),
    dependencies=[scope("runs:write")],
)
async def feedback(run_id: str, body: FeedbackBody, request: Request) -> None:
    """Keeps what the caller thinks of one of their own runs as the episodic event `user_feedback`."""
    runtime = runtime_of(request)
    tenant, owner = principal_of(caller_of(request))
    run = await runtime.runs.get(run_id, Viewer(tenant, owner))
    agent = runtime.agent(run["agent"])
    comment = agent.guardrails.check_input(body.comment).text if body.comment else ""
    said = {"event": "user_feedback", "rating": body.rating, "comment": comment, "run_id": run_id}
    await agent.memory.record_event(SessionKey(tenant, agent.name, run["session_id"]), owner, said)


@router.get(
    "/v1/runs/{run_id}/results/{result_id}", summary="A long result", response_class=Response,
    responses={200: {"content": {"text/plain": {}}}}, dependencies=[scope("runs:read")],
)  # fmt: skip
async def result(run_id: str, result_id: str, request: Request) -> Response:
    """The whole text of a tool's result that the model was shown cut."""
    runtime = runtime_of(request)
    await runtime.runs.get(run_id, viewer_of(request))
    kept: ResultCache = await runtime.state.resources.shared(ResultCache, ResultCache)
    found = kept.find(run_id, result_id)
    if found is None:
        raise EventsGone(f"This run has no stored result {result_id!r}, or it has expired.")
    return Response(found.text, media_type="text/plain; charset=utf-8")


_PROBLEMS = problems(401, 403, 404, 410)


#: no name holds NUL, which PostgreSQL refuses to look for
_NAME = r"^[^\x00]*$"


Status = Literal["", "queued", "running", "waiting", "completed", "failed", "cancelled"]


@router.get(
    "/v1/runs",
    summary="List runs",
    response_model=RunsOut,
    response_model_exclude_unset=True,
    dependencies=[scope("runs:read")],
)
async def runs(
    request: Request,
    agent: Annotated[str, Query(pattern=_NAME)] = "",
    session: Annotated[str, Query(pattern=_NAME)] = "",
    status: Status = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> JsonObject:
    """The caller's runs, the newest first, and what they used together."""
    wanted = RunFilter(agent, session, status, limit)
    found, used = await runtime_of(request).runs.list(viewer_of(request), wanted)
    return {"runs": [_public_run(run) for run in found], "usage": used.to_json()}


@router.get(
    "/v1/runs/{run_id}",
    summary="One run",
    response_model=RunStateOut,
    response_model_exclude_unset=True,
    responses=_PROBLEMS,
    dependencies=[scope("runs:read")],
)
async def run(run_id: str, request: Request) -> JsonObject:
    """State and outcome of a run."""
    return _public_run(await runtime_of(request).runs.get(run_id, viewer_of(request)))


@router.get(
    "/v1/runs/{run_id}/events",
    summary="Events of a run",
    status_code=200,  # said here, as FastAPI cannot read it off a response that has none
    response_class=EventStreamResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **_PROBLEMS, **problems(409)},
    dependencies=[scope("runs:read")],
)
async def events(
    run_id: str,
    request: Request,
    last_event_id: Annotated[int, Header(ge=0, le=MAX_SEQ, description="Resume behind this event.")] = 0,
) -> Response:
    """Everything behind `Last-Event-ID`, then what comes, until the run's last event."""
    outbox = EventBuffer(close_at_end=True)
    request.app.state.followers.add(outbox)
    viewer = viewer_of(request)
    leave = await runtime_of(request).runs.follow(run_id, viewer, last_event_id, outbox)
    if leave is None:
        outbox.close()
    return EventStreamResponse(outbox, leave)


@router.post(
    "/v1/runs/{run_id}/cancel",
    summary="Cancel a run",
    response_model=RunStateOut,
    response_model_exclude_unset=True,
    responses=_PROBLEMS,
    dependencies=[audited("run.cancel", "run_id"), scope("runs:write")],
)
async def cancel(run_id: str, request: Request) -> JsonObject:
    """Ends a run and all that it started. Answered when it has ended; one that had ended stays as it is."""
    return _public_run(await runtime_of(request).runs.cancel(run_id, viewer_of(request)))


def _public_run(run: JsonObject) -> JsonObject:
    return {**run, "error": public_failure(run["error"])} if run["error"] else run
