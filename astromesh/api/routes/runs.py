"""Runs: what became of them, their events, and how to end them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response

from astromesh.api.access import caller_of, runtime_of, viewer_of
from astromesh.api.asked import MOST_SEQ
from astromesh.api.declared import audited, scope
from astromesh.api.errors import public_failure
from astromesh.api.outbox import Outbox
from astromesh.api.schemas import RunsOut, RunStateOut, problems
from astromesh.api.sse import EventStreamResponse
from astromesh.runtime.registry import RunFilter
from astromesh.types import JsonObject

router = APIRouter(tags=["runs"])
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
    found, used = await runtime_of(request).runs.list(viewer_of(caller_of(request)), wanted)
    return {"runs": [_shown(run) for run in found], "usage": used.to_json()}


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
    return _shown(await runtime_of(request).runs.get(run_id, viewer_of(caller_of(request))))


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
    last_event_id: Annotated[int, Header(ge=0, le=MOST_SEQ, description="Resume behind this event.")] = 0,
) -> Response:
    """Everything behind `Last-Event-ID`, then what comes, until the run's last event."""
    outbox = Outbox(ends=True)
    request.app.state.followers.add(outbox)
    viewer = viewer_of(caller_of(request))
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
    return _shown(await runtime_of(request).runs.cancel(run_id, viewer_of(caller_of(request))))


def _shown(run: JsonObject) -> JsonObject:
    return {**run, "error": public_failure(run["error"])} if run["error"] else run
