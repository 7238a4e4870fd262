"""Workflows and their Tasks: run, accept, list, follow, pause, step, replay."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from astromesh.access.scopes import DECIDE
from astromesh.api.dependencies import (
    LastEventId,
    Limit,
    LongLimit,
    PageCursor,
    audited,
    page,
    scope,
    steps_page,
)
from astromesh.api.event_streams import EventBuffer, EventStreamResponse, stream_or_complete
from astromesh.api.fast_routes import json_response, links_of
from astromesh.api.middleware.audit import add_detail
from astromesh.api.requests import (
    CallbackIn,
    WholeNumber,
    caller_of,
    cancel_on_disconnect,
    idempotency_key,
    read_body,
    runtime_of,
    viewer_of,
)
from astromesh.api.requests import Query as Message
from astromesh.api.routes.runs import DecisionBody
from astromesh.api.routes.time_travel import (
    ComparedStepOut,
    ComparedTotals,
    OneEdit,
    RunId,
    StepContentOut,
    StepNumber,
    StepOut,
)
from astromesh.api.schemas import (
    STREAM_COMPLETE,
    Described,
    LinksOut,
    WorkflowsOut,
    answers,
    event_stream,
    problems,
    request_body,
)
from astromesh.durable.step_view import EditKind
from astromesh.durable.tasks import Artifact, ArtifactFilter, ArtifactType
from astromesh.runtime.records import TaskRequest
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import JsonObject

if TYPE_CHECKING:  # a server without workflows does not load their engine
    from astromesh.runtime.task_view import TaskView


async def _load_workflows(request: Request) -> None:
    await runtime_of(request).load_workflows()


router = APIRouter(tags=["workflows"], dependencies=[Depends(_load_workflows)])
Route = TypeVar("Route", bound=Callable[..., Any])
_PROBLEMS = problems(401, 403, 404, 409)
_RUN_PROBLEMS = problems(401, 403, 404, 413, 422, 503)
TaskStatus = Literal["queued", "running", "success", "failure", "partial"]


class TaskBody(BaseModel):
    """The input of a Task."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Any = Field(None, description="Any JSON value that the schema of the start node accepts.")
    start: str | None = Field(None, description="A start node; absent: the default one.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Stored with the Task.")
    callback: CallbackIn | None = Field(
        None, description="Whom to call when the Task ends or waits; the Task is durable."
    )


class PauseBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    before: list[str] = Field(
        default_factory=list, description="Stages to pause before; empty: before every one."
    )


class ReplayBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    stage: str = Field("", description="Only this stage, into a scratch record; empty: the whole Task.")
    task: str = Field("", description="Path of the descendant that ran the stage; empty: the Task itself.")


class TaskDecisionBody(DecisionBody):
    """A person's decision about a stage that waits."""

    question: str = Field("", description="`id` of the question; needed if several wait.")


class TaskOut(Described):
    """A Task. A failed one is 200 as well, with the status `failure`."""

    model_config = ConfigDict(extra="allow")

    task_id: str
    workflow: str
    status: TaskStatus
    output: Any = None
    error: dict[str, Any] | None = None
    metadata: dict[str, Any]


class StageOut(Described):
    """A current stage of a Task: it runs, waits (for a person, its children, a merge), or is paused."""

    task: str = Field(description="Path of the descendant that is there; empty: the Task itself.")
    stage: str
    state: Literal["running", "waiting", "paused"]


class TaskStateOut(TaskOut):
    """A Task, and while it is active what it does now."""

    stages: list[StageOut] = Field(description="Its current stages; none after its end.")
    progress: dict[str, int | None] | None
    paused: list[dict[str, Any]] = Field(description="Stages that wait for the inspector.")
    waiting_for: list[dict[str, Any]] = Field(description="Questions to people.")
    decisions: list[dict[str, Any]] = Field(description="Questions that people have answered.")


class TaskEditBody(OneEdit):
    """Exactly one edit."""

    query: Any = Field(None, description="At step 1: another input of the Task.")
    output: Any = Field(
        None,
        description="Of a stage or agent: any value; of a model: a text, or `{content?, tool_calls?}`.",
    )
    system: str | None = Field(None, description="The system message of an agent's stage, from here on.")
    message: Message | None = Field(None, description="A user message at the end of a model's request.")
    state: dict[str, Any] | None = Field(None, description="Values that are put into the output of a stage.")
    tool_result: Any = Field(None, description="What a tool returns instead.")
    model: str | None = Field(
        None, description="In place of every model of the workflow, from here on: a name, or `adapter:name`."
    )
    manifest: Literal["current"] | None = Field(None, description="The present manifests, from here on.")


class TaskForkBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    at: WholeNumber = Field(description="Number of the step that the fork continues at.")
    edit: TaskEditBody | None = Field(None, description="What is different; absent: nothing.")


class TaskForkedFromOut(Described):
    task_id: str
    step: int
    edit: EditKind | None


class TaskForkedOut(Described):
    """A fork that is on disk."""

    task_id: str
    status: str
    forked_from: TaskForkedFromOut
    links: LinksOut


class TaskStepsOut(Described):
    task_id: str
    steps: list[StepOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class ComparedTaskOut(ComparedTotals):
    task_id: str
    workflow: str
    status: TaskStatus
    output: Any


class TaskComparisonOut(Described):
    runs: dict[str, ComparedTaskOut] = Field(description="The Tasks, by `a`, `b` and `c`.")
    steps: list[ComparedStepOut]
    divergence: ComparedStepOut | None = Field(description="The first step that is not equal.")


class TasksOut(Described):
    tasks: list[TaskOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class ManifestOut(Described):
    model_config = ConfigDict(extra="allow")

    task_id: str
    run_fingerprint: str
    workflow: str
    files: dict[str, Any] | None = Field(description="null: an earlier version has accepted the Task.")


class ArtifactOut(Described):
    type: ArtifactType
    task: str = Field(description="Path of the descendant that made it; empty: the Task itself.")
    node_id: str
    stage_id: str
    created_at: float = Field(description="Seconds since the epoch.")
    run_fingerprint: str
    content: Any


class ArtifactsOut(Described):
    artifacts: list[ArtifactOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class TaskReplayOut(Described):
    """The report of a replay; with `stage`, of that stage alone."""

    model_config = ConfigDict(extra="allow")

    divergence: Any = Field(description="The first difference; null: there is none.")


class TaskAcceptedOut(Described):
    task_id: str
    status: str
    links: LinksOut


_TASK: TypeAdapter[TaskBody] = TypeAdapter(TaskBody)
_PAUSE: TypeAdapter[PauseBody] = TypeAdapter(PauseBody)
_DECISION: TypeAdapter[TaskDecisionBody] = TypeAdapter(TaskDecisionBody)
_FORK: TypeAdapter[TaskForkBody] = TypeAdapter(TaskForkBody)
_REPLAY: TypeAdapter[ReplayBody] = TypeAdapter(ReplayBody)


def _run_route(path: str, summary: str, answer: type[BaseModel], **options: Any) -> Callable[[Route], Route]:
    """Declares a route that starts a Task."""
    return router.post(
        f"/v1/workflows/{{name}}/{path}",
        summary=summary,
        response_model=answer,
        openapi_extra=request_body(TaskBody),
        responses=_RUN_PROBLEMS,
        dependencies=[scope("workflows:run")],
        **options,
    )


def _read_route(path: str, summary: str, **options: Any) -> Callable[[Route], Route]:
    """Declares a route that reads a Task."""
    options = {"responses": _PROBLEMS, "dependencies": [scope("workflows:read")], **options}
    return router.get(f"/v1/tasks/{{task_id}}{path}", summary=summary, **options)


def _answer(body: type[BaseModel], *more: int) -> dict[str, Any]:
    """Returns the options of a route that answers with a plain record of this form, or with a problem."""
    return {"response_model": None, "responses": {**answers(body), **_PROBLEMS, **problems(*more)}}


def _act_route(action: str, summary: str, **options: Any) -> Callable[[Route], Route]:
    """Declares a route that changes a Task."""
    return router.post(
        f"/v1/tasks/{{task_id}}/{action}",
        summary=summary,
        dependencies=[audited(f"task.{action}", "task_id"), scope("workflows:write")],
        **{"responses": _PROBLEMS, "response_model": TaskOut, **options},
    )


def _tasks(request: Request) -> TaskView:
    return runtime_of(request).workflows.tasks


@router.get(
    "/v1/workflows", summary="List the workflows", response_model=None, responses=answers(WorkflowsOut),
    dependencies=[scope("workflows:read")],
)  # fmt: skip
async def workflows(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the configured workflows by name, those with faults included."""
    found = runtime_of(request).workflows.loaded.to_json()
    listed, more = page(found, lambda one: str(one["name"]), limit, cursor)
    return {"workflows": listed, "next": more}


@_run_route("run", "Run a workflow", TaskOut)
async def run(name: str, request: Request) -> Response:
    """Runs a Task to its end.

    A client that disconnects cancels it, unless it sent an Idempotency-Key or there is a callback.
    """
    body = await read_body(request, _TASK)
    workflows, caller = runtime_of(request).workflows, caller_of(request)
    task_request = _task_request(body, request)
    key = await idempotency_key(request)
    if key is not None or workflows.has_callback(name, task_request):
        answer = workflows.answer(name, task_request, key, caller=caller)
        return json_response(await cancel_on_disconnect(request, answer))
    result = await cancel_on_disconnect(request, workflows.run(name, task_request, caller=caller))
    return json_response(result.to_json())


@_run_route("runs", "Accept a durable Task", TaskAcceptedOut, status_code=202)
async def accept(name: str, request: Request) -> Response:
    """Responds once the Task is on disk. The Task then completes even if processes die."""
    body = await read_body(request, _TASK)
    row = await runtime_of(request).workflows.accept(
        name, _task_request(body, request), caller=caller_of(request), key=await idempotency_key(request)
    )
    # a repeated request gets the same answer, so the status is not the Task's present one
    links = links_of(f"/v1/tasks/{row.task_id}")
    return json_response({"task_id": row.task_id, "status": "queued", "links": links}, 202)


@router.get(
    "/v1/tasks", summary="List Tasks", response_model=None, responses=answers(TasksOut),
    dependencies=[scope("workflows:read")],
)  # fmt: skip
async def tasks(
    request: Request,
    cursor: PageCursor,
    workflow: str = "",
    status: Literal["", TaskStatus] = "",
    limit: Limit = 50,
) -> JsonObject:
    """Lists the caller's Tasks, newest first."""
    found = await _tasks(request).list(viewer_of(request), workflow, status, limit + 1, cursor.after)
    listed, more = cursor.page(found, limit, lambda one: str(one["task_id"]))
    return {"tasks": listed, "next": more}


@router.get(
    "/v1/tasks/compare",
    summary="Compare Tasks",
    response_model=TaskComparisonOut,
    response_model_exclude_unset=True,
    responses={**_PROBLEMS, **problems(422)},
    dependencies=[scope("workflows:read")],
)
async def compare(a: RunId, b: RunId, request: Request, c: RunId | None = None) -> JsonObject:
    """Aligns the steps of two or three Tasks, and shows what differs and what they cost."""
    task_ids = [task_id for task_id in (a, b, c) if task_id]
    return await _tasks(request).compare(task_ids, viewer_of(request))


@_read_route("", "One Task", response_model=TaskStateOut)
async def task(task_id: str, request: Request) -> JsonObject:
    """Returns the state and outcome of a Task, its current stages, and what they wait for."""
    return await _tasks(request).state(task_id, viewer_of(request))


@_read_route("/trace", "History of a Task", response_model=TaskOut)
async def trace(task_id: str, request: Request) -> JsonObject:
    """Returns every execution of a stage by `seq`, and the descendants of the Task."""
    return await _tasks(request).trace(task_id, viewer_of(request))


@_read_route("/steps", "Steps of a Task", response_model=TaskStepsOut)
async def steps(task_id: str, request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the calls of the stages that have ended, in order, each behind the calls that were made in it."""
    found = await _tasks(request).listed_steps(task_id, viewer_of(request))
    return {"task_id": task_id, **steps_page(found, limit, cursor)}


@_read_route("/steps/{step}", "One step of a Task", response_model=StepContentOut)
async def step_content(task_id: str, step: StepNumber, request: Request) -> JsonObject:
    """Returns a step with its input and output."""
    return await _tasks(request).step_content(task_id, step, viewer_of(request))


@router.post(
    "/v1/tasks/{task_id}/fork",
    summary="Fork a Task at a step",
    status_code=202,
    response_model=TaskForkedOut,
    openapi_extra=request_body(TaskForkBody),
    responses=problems(401, 403, 404, 409, 413, 422, 503),
    dependencies=[audited("task.fork", "task_id"), scope("workflows:run")],
)
async def fork(task_id: str, request: Request) -> Response:
    """Accepts a durable Task that has the steps before `at`, and continues from there with the edit."""
    body = await read_body(request, _FORK, '{"at": 3}')
    edit = body.edit.edit if body.edit is not None else None
    workflows, key = runtime_of(request).workflows, await idempotency_key(request)
    row = await workflows.fork(task_id, viewer_of(request), body.at, edit, caller_of(request), key)
    links = links_of(f"/v1/tasks/{row.task_id}")
    found = {"task_id": row.task_id, "status": "queued", "forked_from": row.forked_from, "links": links}
    return json_response(found, 202)


@_read_route("/manifest", "Manifests of a Task", **_answer(ManifestOut))
async def manifest(task_id: str, request: Request) -> JsonObject:
    """Returns the files that the Task was accepted with, as they were then, without literal API keys."""
    return await _tasks(request).manifest(task_id, viewer_of(request))


@_read_route("/graph", "Draw the workflow of a Task", response_class=PlainTextResponse)
async def graph(task_id: str, request: Request) -> str:
    """Returns the workflow that the Task was accepted with as a Mermaid diagram."""
    return await _tasks(request).diagram(task_id, viewer_of(request))


_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _is_timestamp(text: Any) -> Any:
    """Refuses what pydantic takes for a time besides RFC 3339: numbers, dates, times without a zone."""
    if isinstance(text, str) and not _TIMESTAMP.fullmatch(text):
        raise ValueError("it must be a time as in RFC 3339, e.g. 2026-12-24T18:00:00Z")
    return text


@_read_route("/artifacts", "Artifacts of a Task", **_answer(ArtifactsOut))
async def artifacts(  # noqa: PLR0913 (a parameter for each filter)
    task_id: str,
    request: Request,
    cursor: PageCursor,
    node: str = "",
    type: Annotated[Literal["", ArtifactType], Query(description="Only artifacts of this type.")] = "",
    since: Annotated[
        datetime | None,
        BeforeValidator(_is_timestamp),
        Query(description="Only artifacts that are not older."),
    ] = None,
    limit: LongLimit = 1000,
) -> JsonObject:
    """Lists validated outputs, tool results, telemetry and evaluations, oldest first."""
    earliest = since.timestamp() if since else 0.0
    place = cursor.numbers(_artifact_place) if cursor.after else (0.0, 0)
    query = ArtifactFilter(task_id, node, type, earliest, limit + 1, *place)
    found = await _tasks(request).artifacts(task_id, viewer_of(request), query)
    listed, more = cursor.page(found, limit, lambda one: f"{one.created_at!r}-{one.n}")
    return {"artifacts": [_artifact_json(one) for one in listed], "next": more}


@_read_route(
    "/events",
    "Events of a Task",
    status_code=200,
    response_class=EventStreamResponse,
    responses={
        200: {"content": event_stream("TaskEvents")},
        204: STREAM_COMPLETE,
        **_PROBLEMS,
        **problems(422),
    },
)
async def events(task_id: str, request: Request, last_event_id: LastEventId = 0) -> Response:
    """Sends every event after `Last-Event-ID`, past and to come, until the Task ends; see `/v1/runs`."""
    buffer = EventBuffer()
    request.app.state.followers.add(buffer)
    leave = await _tasks(request).follow(task_id, viewer_of(request), last_event_id, buffer, buffer.close)
    return stream_or_complete(buffer, leave, last_event_id)


@_act_route("cancel", "Cancel a Task")
async def cancel(task_id: str, request: Request) -> JsonObject:
    """Ends a Task and its descendants, and answers when it has ended."""
    return await _tasks(request).cancel(task_id, viewer_of(request))


@_act_route(
    "pause", "Pause a Task before its next stage", openapi_extra=request_body(PauseBody, required=False)
)
async def pause(task_id: str, request: Request) -> JsonObject:
    """Pauses a Task before its next stages, or before the named ones. Running stages continue."""
    body = await read_body(request, _PAUSE) if await request.body() else PauseBody()
    return await _tasks(request).pause(task_id, viewer_of(request), body.before)


@_act_route("step", "Run one waiting stage")
async def step(task_id: str, request: Request) -> JsonObject:
    """Runs the stage that waits longest. The Task pauses again before the next one."""
    return await _tasks(request).step(task_id, viewer_of(request))


@_act_route("resume", "Resume a paused Task")
async def resume(task_id: str, request: Request) -> JsonObject:
    """Runs all stages that wait."""
    return await _tasks(request).resume(task_id, viewer_of(request))


@router.post(
    "/v1/tasks/{task_id}/decide",
    summary="Answer a question of a Task",
    openapi_extra=request_body(TaskDecisionBody),
    response_model=TaskOut,
    responses={**_PROBLEMS, **problems(422, 503)},
    dependencies=[audited("task.decide", "task_id"), scope(DECIDE, any_resource=True)],
)
async def decide(task_id: str, request: Request) -> JsonObject:
    """Continues a stage that waits for a person. The Task's record holds who decided."""
    body = await read_body(request, _DECISION)
    decision = body.made()
    add_detail(request, decision.decision)
    return await _tasks(request).decide(
        task_id, viewer_of(request), caller_of(request), decision.question or "", decision
    )


@_act_route(
    "replay",
    "Replay a Task offline",
    openapi_extra=request_body(ReplayBody, required=False),
    **_answer(TaskReplayOut, 422),
)
async def replay(task_id: str, request: Request) -> JsonObject:
    """Runs an ended Task, or one stage of it, from its records. It calls and stores nothing."""
    body = await read_body(request, _REPLAY) if await request.body() else ReplayBody()
    replays = runtime_of(request).workflows.replays
    return await replays.replay(task_id, viewer_of(request), body.stage, body.task)


def _task_request(body: TaskBody, request: Request) -> TaskRequest:
    caused_by = read_traceparent(request.headers.get("traceparent"))
    callback = body.callback.callback() if body.callback else None
    return TaskRequest(body.input, body.start, body.metadata, caused_by, callback)


def _artifact_place(text: str) -> tuple[float, int]:
    at, _, n = text.partition("-")
    return float(at), int(n)


def _artifact_json(one: Artifact) -> JsonObject:
    return {
        "type": one.type, "task": one.path, "node_id": one.node, "stage_id": one.stage,
        "created_at": one.created_at, "run_fingerprint": one.fingerprint, "content": one.content,
    }  # fmt: skip
