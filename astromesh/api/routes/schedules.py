"""Schedules: runs and Tasks that begin at times; create, list, pause, run now, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from astromesh.access.scopes import RUN, require_scope
from astromesh.api.dependencies import Limit, PageCursor, audited, scope
from astromesh.api.fast_routes import json_response, links_of
from astromesh.api.middleware.audit import name_object
from astromesh.api.requests import caller_of, runtime_of, viewer_of
from astromesh.api.schemas import Described, LinksOut, problems
from astromesh.config.schedules import (
    MAX_JITTER_SECONDS,
    AgentSchedule,
    Cron,
    OnMissed,
    WorkflowSchedule,
)
from astromesh.durable.base import ScheduleQuery
from astromesh.runtime.schedules import schedule_json
from astromesh.types import JsonObject


async def _load_workflows(request: Request) -> None:
    if (runtime := runtime_of(request)).has_workflows:
        await runtime.load_workflows()


router = APIRouter(tags=["schedules"])
_PROBLEMS = problems(401, 403, 404, 409, 422, 503)
Name = Annotated[str, Field(min_length=1, max_length=64)]
NameQuery = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$")]


_TEXT, _NULL = {"type": "string"}, {"type": "null"}
_ONE_TARGET: JsonObject = {
    "oneOf": [
        {
            "required": ["agent", "query"],
            "properties": {"agent": _TEXT, "query": _TEXT, "workflow": _NULL, "input": _NULL},
        },
        {
            "required": ["workflow"],
            "properties": {"workflow": _TEXT, "agent": _NULL, "query": _NULL, "session": {"maxLength": 0}},
        },
    ]
}


class ScheduleBody(BaseModel):
    """What begins, and when."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_ONE_TARGET)

    agent: Name | None = Field(None, description="Whom `query` is sent to.")
    workflow: Name | None = Field(None, description="Whose Tasks get `input`.")
    cron: str = Field(max_length=200, description="Minute, hour, day of the month, month, day of the week.")
    timezone: str = Field("UTC", max_length=64, description="Where the times of `cron` are local times.")
    query: str | None = Field(None, min_length=1, description="The message to the agent.")
    session: str = Field("", max_length=256, description="Its session; empty: each firing has its own.")
    input: Any = Field(None, description="The input of the Task.")
    jitter: float = Field(
        0.0,
        ge=0,
        le=MAX_JITTER_SECONDS,
        description="Seconds; each firing is later by a part of them.",
    )
    on_missed: OnMissed = Field("once", description="Firings that no process was there for.")

    @model_validator(mode="after")
    def _has_one_target(self) -> ScheduleBody:
        if (self.agent is None) == (self.workflow is None):
            raise ValueError("set either 'agent' or 'workflow'")
        if self.agent is not None and (self.query is None or self.input is not None):
            raise ValueError("an agent takes a query, and no input")
        if self.workflow is not None and (self.query is not None or self.session):
            raise ValueError("a workflow takes an input, and no query or session")
        Cron(self.cron, self.timezone)
        return self

    def times(self) -> AgentSchedule | WorkflowSchedule:
        kind = WorkflowSchedule if self.agent is None else AgentSchedule
        names = self.model_fields_set & kind.model_fields.keys()
        return kind.model_validate({name: getattr(self, name) for name in names})


class ScheduleOut(Described):
    """A schedule. The fields of an agent or of a workflow are there, not both."""

    id: str
    agent: str = ""
    workflow: str = ""
    cron: str
    timezone: str
    query: str = ""
    session: str = ""
    input: Any = None
    jitter: float
    on_missed: OnMissed
    source: Literal["file", "api"] = Field(description="`file`: a file of the configuration has it.")
    paused: bool
    created_at: str
    next_at: str | None = Field(description="The next time of `cron`, without jitter; null: it is paused.")
    last_at: str | None = Field(description="The time that the last firing was for.")
    last_run_id: str | None = None
    last_task_id: str | None = None
    error: str | None = Field(description="Why the last firing did not begin.")


class SchedulesOut(Described):
    schedules: list[ScheduleOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class BegunOut(Described):
    """The run or Task that has begun."""

    run_id: str = ""
    task_id: str = ""
    links: LinksOut


@router.get(
    "/v1/schedules",
    summary="List schedules",
    response_model=SchedulesOut,
    response_model_exclude_unset=True,
    dependencies=[scope("runs:read")],
)
async def schedules(
    request: Request, cursor: PageCursor, agent: NameQuery = "", workflow: NameQuery = "", limit: Limit = 50
) -> JsonObject:
    """Lists the caller's schedules by id. Those of files are the default principal's."""
    kind = "agent" if agent else "workflow" if workflow else ""
    query = ScheduleQuery(*viewer_of(request), kind, agent or workflow, cursor.after, limit + 1)
    found = await runtime_of(request).schedules.list(query)
    listed, more = cursor.page(found, limit, lambda one: one.id)
    return {"schedules": [schedule_json(one) for one in listed], "next": more}


@router.post(
    "/v1/schedules",
    summary="Create a schedule",
    status_code=201,
    response_model=ScheduleOut,
    response_model_exclude_unset=True,
    responses=_PROBLEMS,
    dependencies=[audited("schedule.create"), scope("runs:write"), Depends(_load_workflows)],
)
async def create(body: ScheduleBody, request: Request) -> JsonObject:
    """Stores a schedule. What it begins acts as the caller, who must be allowed to begin it."""
    kind, target = ("agent", body.agent) if body.agent is not None else ("workflow", body.workflow or "")
    _require_may_begin(request, kind, target)
    made = await runtime_of(request).schedules.create(kind, target, body.times(), caller_of(request))
    name_object(request, made.id)
    return schedule_json(made)


@router.get(
    "/v1/schedules/{schedule_id}",
    summary="One schedule",
    response_model=ScheduleOut,
    response_model_exclude_unset=True,
    responses=problems(401, 403, 404),
    dependencies=[scope("runs:read")],
)
async def schedule(schedule_id: str, request: Request) -> JsonObject:
    """Returns a schedule with its next time and its last firing."""
    return schedule_json(await runtime_of(request).schedules.get(schedule_id, viewer_of(request)))


@router.post(
    "/v1/schedules/{schedule_id}/pause",
    summary="Pause a schedule",
    response_model=ScheduleOut,
    response_model_exclude_unset=True,
    responses=problems(401, 403, 404, 503),
    dependencies=[audited("schedule.pause", "schedule_id"), scope("runs:write")],
)
async def pause(schedule_id: str, request: Request) -> JsonObject:
    """Nothing begins until it is resumed."""
    return schedule_json(await runtime_of(request).schedules.pause(schedule_id, viewer_of(request), True))


@router.post(
    "/v1/schedules/{schedule_id}/resume",
    summary="Resume a schedule",
    response_model=ScheduleOut,
    response_model_exclude_unset=True,
    responses=problems(401, 403, 404, 503),
    dependencies=[audited("schedule.resume", "schedule_id"), scope("runs:write")],
)
async def resume(schedule_id: str, request: Request) -> JsonObject:
    """Continues with its next time. What was paused is not missed."""
    return schedule_json(await runtime_of(request).schedules.pause(schedule_id, viewer_of(request), False))


@router.post(
    "/v1/schedules/{schedule_id}/run",
    summary="Run a schedule now",
    status_code=202,
    response_model=BegunOut,
    response_model_exclude_unset=True,
    responses=_PROBLEMS,
    dependencies=[
        audited("schedule.run", "schedule_id"), scope("runs:write"), Depends(_load_workflows),
    ],
)  # fmt: skip
async def run_now(schedule_id: str, request: Request) -> Response:
    """Begins a run or Task of the caller at once. The times of the schedule stay as they are."""
    found = await runtime_of(request).schedules.get(schedule_id, viewer_of(request))
    _require_may_begin(request, found.kind, found.target)
    new_id = await runtime_of(request).schedules.run_now(found, caller_of(request))
    name, path = ("run_id", "runs") if found.kind == "agent" else ("task_id", "tasks")
    return json_response({name: new_id, "links": links_of(f"/v1/{path}/{new_id}")}, 202)


@router.delete(
    "/v1/schedules/{schedule_id}",
    summary="Delete a schedule",
    status_code=204,
    responses=problems(401, 403, 404, 409, 503),
    dependencies=[audited("schedule.delete", "schedule_id"), scope("runs:write")],
)
async def delete(schedule_id: str, request: Request) -> None:
    """Ends a schedule. Runs that have begun go on. One of a file is 409: it ends with the file's key."""
    await runtime_of(request).schedules.delete(schedule_id, viewer_of(request))


def _require_may_begin(request: Request, kind: str, target: str) -> None:
    """Raises: Forbidden: the caller may not run the agent or the workflow."""
    scope = RUN if kind == "agent" else "workflows:run"
    require_scope(caller_of(request).scopes, scope, target if kind == "agent" else "")
