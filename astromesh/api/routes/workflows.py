"""Workflows and their Tasks (api.md section 1)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from astromesh.api.dependencies import audited, scope
from astromesh.api.fast_routes import json_response
from astromesh.api.requests import (
    MAX_SEQ,
    caller_of,
    cancel_on_disconnect,
    idempotency_key,
    read_body,
    runtime_of,
    viewer_of,
)
from astromesh.api.responses import EventBuffer, EventStreamResponse
from astromesh.api.schemas import problems, request_body
from astromesh.durable.base import Artifact, ArtifactFilter, ArtifactType
from astromesh.runtime.records import TaskRequest
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import JsonObject


async def _load_workflows(request: Request) -> None:
    await runtime_of(request).load_workflows()


router = APIRouter(tags=["workflows"], dependencies=[Depends(_load_workflows)])
_READING = problems(401, 403, 404, 409)
_RUNNING = problems(401, 403, 404, 413, 422, 503)
Status = Literal["", "queued", "running", "success", "failure", "partial"]


class TaskBody(BaseModel):
    """What a Task works on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Any = Field(None, description="Any JSON value; the start node's schema says more.")
    start: str | None = Field(None, description="A start node; absent: the default one.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Kept with the Task.")


class PauseBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    before: list[str] = Field(default_factory=list, description="Stages to wait before; empty: every one.")


class ReplayBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    stage: str = Field("", description="Only this stage, into a scratch record; empty: the whole Task.")
    task: str = Field("", description="Path of the descendant that ran the stage; empty: the Task itself.")


class TaskOut(BaseModel):
    """A Task. One that failed is 200, too: its status says so."""

    model_config = ConfigDict(extra="allow")

    task_id: str
    workflow: str
    status: Literal["queued", "running", "success", "failure", "partial"]
    output: Any = None
    error: dict[str, Any] | None = None
    metadata: dict[str, Any]


class TaskLinks(BaseModel):
    self: str
    events: str
    cancel: str


class TaskAcceptedOut(BaseModel):
    task_id: str
    status: str
    links: TaskLinks


_TASK: TypeAdapter[TaskBody] = TypeAdapter(TaskBody)
_PAUSE: TypeAdapter[PauseBody] = TypeAdapter(PauseBody)
_REPLAY: TypeAdapter[ReplayBody] = TypeAdapter(ReplayBody)


@router.get("/v1/workflows", summary="List the workflows", dependencies=[scope("workflows:read")])
async def workflows(request: Request) -> JsonObject:
    """Every workflow of the configuration, those with faults too."""
    return {"workflows": runtime_of(request).workflows.loaded.to_json()}


@router.post(
    "/v1/workflows/{name}/run",
    summary="Run a workflow",
    response_model=TaskOut,
    openapi_extra=request_body(TaskBody),
    responses=_RUNNING,
    dependencies=[scope("workflows:run")],
)
async def run(name: str, request: Request) -> Response:
    """Runs a Task to its end. It is cancelled when the client goes away, unless it has an Idempotency-Key."""
    body = await read_body(request, _TASK)
    workflows, caller = runtime_of(request).workflows, caller_of(request)
    task_request = _task_request(body, request)
    if (key := await idempotency_key(request)) is not None:
        answer = workflows.answer(name, task_request, key, caller=caller)
        return json_response(await cancel_on_disconnect(request, answer))
    result = await cancel_on_disconnect(request, workflows.run(name, task_request, caller=caller))
    return json_response(result.to_json())


@router.post(
    "/v1/workflows/{name}/runs",
    summary="Accept a durable Task",
    status_code=202,
    response_model=TaskAcceptedOut,
    openapi_extra=request_body(TaskBody),
    responses=_RUNNING,
    dependencies=[scope("workflows:run")],
)
async def accept(name: str, request: Request) -> Response:
    """Answered when the Task is on disk: from then on it ends, whatever dies meanwhile."""
    body = await read_body(request, _TASK)
    row = await runtime_of(request).workflows.accept(
        name, _task_request(body, request), caller=caller_of(request), key=await idempotency_key(request)
    )
    path = f"/v1/tasks/{row.task_id}"
    links = {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"}
    # who sends it again, with its key, gets the same answer; what became of the Task is asked for by its id
    return json_response({"task_id": row.task_id, "status": "queued", "links": links}, 202)


@router.get("/v1/tasks", summary="List Tasks", dependencies=[scope("workflows:read")])
async def tasks(
    request: Request,
    workflow: str = "",
    status: Status = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> JsonObject:
    """The caller's Tasks, the newest first."""
    viewer = viewer_of(request)
    return {"tasks": await runtime_of(request).workflows.tasks.list(viewer, workflow, status, limit)}


@router.get(
    "/v1/tasks/{task_id}",
    summary="One Task",
    response_model=TaskOut,
    responses=_READING,
    dependencies=[scope("workflows:read")],
)
async def task(task_id: str, request: Request) -> JsonObject:
    """State and outcome of a Task, and the stages that wait for the inspector."""
    return await runtime_of(request).workflows.tasks.state(task_id, viewer_of(request))


@router.get(
    "/v1/tasks/{task_id}/trace",
    summary="History of a Task",
    response_model=TaskOut,
    responses=_READING,
    dependencies=[scope("workflows:read")],
)
async def trace(task_id: str, request: Request) -> JsonObject:
    """Every execution of a stage by `seq`, and the Task's descendants."""
    return await runtime_of(request).workflows.tasks.trace(task_id, viewer_of(request))


@router.get(
    "/v1/tasks/{task_id}/artifacts",
    summary="What a Task left",
    responses=_READING,
    dependencies=[scope("workflows:read")],
)
async def artifacts(
    task_id: str,
    request: Request,
    node: str = "",
    type: Annotated[ArtifactType | Literal[""], Query(description="Only of this type.")] = "",
    since: Annotated[datetime | None, Query(description="Only those that are not older.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> JsonObject:
    """Validated outputs, answers of tools, telemetry, evaluations; the oldest first."""
    wanted = ArtifactFilter(task_id, node, type, since.timestamp() if since else 0.0, limit)
    viewer = viewer_of(request)
    found = await runtime_of(request).workflows.tasks.artifacts(task_id, viewer, wanted)
    return {"artifacts": [_artifact_json(one) for one in found]}


@router.get(
    "/v1/tasks/{task_id}/events",
    summary="Events of a Task",
    status_code=200,
    response_class=EventStreamResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **_READING},
    dependencies=[scope("workflows:read")],
)
async def events(
    task_id: str,
    request: Request,
    last_event_id: Annotated[int, Header(ge=0, le=MAX_SEQ, description="Resume behind this event.")] = 0,
) -> Response:
    """Everything behind `Last-Event-ID`, then what comes, until the Task has ended."""
    outbox = EventBuffer()
    request.app.state.followers.add(outbox)
    viewer, tasks = viewer_of(request), runtime_of(request).workflows.tasks
    leave = await tasks.follow(task_id, viewer, last_event_id, outbox, outbox.close)
    return EventStreamResponse(outbox, leave)


@router.post(
    "/v1/tasks/{task_id}/cancel",
    summary="Cancel a Task",
    response_model=TaskOut,
    responses=_READING,
    dependencies=[audited("task.cancel", "task_id"), scope("workflows:write")],
)
async def cancel(task_id: str, request: Request) -> JsonObject:
    """Ends a Task and all below it; answered when it has ended."""
    return await runtime_of(request).workflows.tasks.cancel(task_id, viewer_of(request))


@router.post(
    "/v1/tasks/{task_id}/pause",
    summary="Pause a Task before its next stage",
    response_model=TaskOut,
    openapi_extra=request_body(PauseBody, required=False),
    responses=_READING,
    dependencies=[audited("task.pause", "task_id"), scope("workflows:write")],
)
async def pause(task_id: str, request: Request) -> JsonObject:
    """Stages that run go on; the next ones wait, or only the named ones."""
    body = await read_body(request, _PAUSE) if await request.body() else PauseBody()
    viewer = viewer_of(request)
    return await runtime_of(request).workflows.tasks.pause(task_id, viewer, body.before)


@router.post(
    "/v1/tasks/{task_id}/step",
    summary="Run one waiting stage",
    response_model=TaskOut,
    responses=_READING,
    dependencies=[audited("task.step", "task_id"), scope("workflows:write")],
)
async def step(task_id: str, request: Request) -> JsonObject:
    """The stage that waits longest runs; the Task waits before the next one."""
    return await runtime_of(request).workflows.tasks.step(task_id, viewer_of(request))


@router.post(
    "/v1/tasks/{task_id}/resume",
    summary="Let a paused Task go on",
    response_model=TaskOut,
    responses=_READING,
    dependencies=[audited("task.resume", "task_id"), scope("workflows:write")],
)
async def resume(task_id: str, request: Request) -> JsonObject:
    """All stages that wait run."""
    return await runtime_of(request).workflows.tasks.resume(task_id, viewer_of(request))


@router.post(
    "/v1/tasks/{task_id}/replay",
    summary="Replay a Task offline",
    openapi_extra=request_body(ReplayBody, required=False),
    responses={**_READING, **problems(422)},
    dependencies=[audited("task.replay", "task_id"), scope("workflows:write")],
)
async def replay(task_id: str, request: Request) -> JsonObject:
    """Runs an ended Task, or one stage of it, from its records: nobody is asked, nothing is kept."""
    body = await read_body(request, _REPLAY) if await request.body() else ReplayBody()
    viewer = viewer_of(request)
    return await runtime_of(request).workflows.replays.replay(task_id, viewer, body.stage, body.task)


def _task_request(body: TaskBody, request: Request) -> TaskRequest:
    caused_by = read_traceparent(request.headers.get("traceparent"))
    return TaskRequest(body.input, body.start, body.metadata, caused_by)


def _artifact_json(one: Artifact) -> JsonObject:
    return {
        "type": one.type, "task": one.path, "node_id": one.node, "stage_id": one.stage,
        "created_at": one.created_at, "run_fingerprint": one.fingerprint, "content": one.content,
    }  # fmt: skip
