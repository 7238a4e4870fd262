"""Traces, metrics, the audit log, liveness and readiness."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.responses import PlainTextResponse

from astromesh.access.audit import AuditFilter, AuditLog
from astromesh.api.dependencies import Limit, LongLimit, PageCursor, scope
from astromesh.api.fast_routes import (
    HEALTH_PATH,
    LIVE_PATH,
    METRICS_PATH,
    METRICS_SCOPE,
    READY_PATH,
    live,
    metrics,
    ready,
)
from astromesh.api.requests import caller_of, runtime_of, viewer_of
from astromesh.api.schemas import Described, LiveOut, ReadyOut, TracesOut, TraceSpansOut, answers, problems
from astromesh.durable.base import QueueDepth, RunQuery, RunStatus
from astromesh.durable.leases import LEASE_SECONDS
from astromesh.durable.tasks import TaskQueueDepth
from astromesh.errors import TraceNotFound
from astromesh.telemetry.clock import iso_time
from astromesh.types import JsonObject

router = APIRouter(tags=["observability"])


class ActOut(Described):
    """One audited act: its principal, action, object and outcome."""

    at: float = Field(description="Seconds since the epoch.")
    action: str
    object: str
    outcome: str = Field(description="done, refused or failed.")
    detail: str
    principal: str
    tenant: str
    key: str = Field(description="The id of the API key.")


class ActsOut(Described):
    acts: list[ActOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


@router.get("/v1/audit", summary="Audit log", response_model=ActsOut, dependencies=[scope("audit:read")])
async def acts(
    request: Request,
    cursor: PageCursor,
    action: str = "",
    principal: str = "",
    object: str = "",
    limit: LongLimit = 100,
) -> JsonObject:
    """Lists the audited acts of the caller's tenant, newest first."""
    log = cast(AuditLog, request.app.state.audit)
    query = AuditFilter(action, principal, object, limit + 1, cursor.number if cursor.after else None)
    found = await asyncio.to_thread(log.numbered, caller_of(request).tenant_id, query)
    listed, more = cursor.page(found, limit, lambda one: one[0])
    return {"acts": [act for _, act in listed], "next": more}


health_router = APIRouter(tags=["health"])
health_router.get(HEALTH_PATH, include_in_schema=False)(live)
health_router.get(LIVE_PATH, summary="Liveness", response_model=LiveOut)(live)
health_router.get(READY_PATH, summary="Readiness", response_model=ReadyOut, responses=answers(ReadyOut, 503))(
    ready
)


class RunSumsOut(Described):
    """Sums over runs; nested runs count with the run above them."""

    runs: int
    failed: int
    tokens: int
    cost_usd: float


class TimedRunsOut(RunSumsOut):
    p50_ms: float | None = Field(description="Median duration of the completed runs; null without any.")
    p95_ms: float | None


class MinuteOut(TimedRunsOut):
    at: int = Field(description="Where the minute begins, in seconds since the epoch.")


class StatisticsOut(Described):
    minutes: list[MinuteOut] = Field(description="The oldest first; the last one is not over.")
    total: TimedRunsOut = Field(description="Of these minutes.")
    today: RunSumsOut = Field(description="Since midnight UTC.")


@router.get(
    "/v1/statistics",
    summary="Statistics of runs",
    response_model=StatisticsOut,
    dependencies=[scope("runs:read")],
)
async def statistics(request: Request, minutes: Annotated[int, Query(ge=1, le=1_440)] = 60) -> JsonObject:
    """Counts the caller's runs, their tokens, cost and durations in the last minutes and today."""
    return await runtime_of(request).runs.statistics(viewer_of(request), minutes)


class QueueOut(Described):
    """The durable runs of one agent, nested ones aside."""

    agent: str
    queued: int = Field(description="Wait for room, for their session or for a process.")
    later: int = Field(description="Wait for their `not_before`.")
    running: int
    waiting: int = Field(description="Wait for a person, their client or a timer.")
    oldest_at: str | None = Field(description="Since when the oldest queued run could begin.")


class TaskQueueOut(Described):
    """The durable Tasks of one workflow."""

    workflow: str
    queued: int = Field(description="Wait for room or for a process.")
    running: int
    waiting: int = Field(description="A stage waits for a person or the inspector.")
    oldest_at: str | None = Field(description="When the oldest queued Task was accepted.")


class WorkerOut(Described):
    """A process that executes durable runs."""

    worker: str
    running: int
    seen_at: str = Field(description="Its last heartbeat.")


class QueuesOut(Described):
    queues: list[QueueOut]
    tasks: list[TaskQueueOut]
    workers: list[WorkerOut]


@router.get("/v1/queues", summary="Queues", response_model=QueuesOut, dependencies=[scope("metrics:read")])
async def queues(request: Request) -> JsonObject:
    """Counts open durable runs and Tasks of all tenants, and lists the processes that execute runs."""
    runtime = runtime_of(request)
    tasks = await runtime.workflows.queues() if runtime.has_workflows else ()
    tasks_json = [_queue_json(one) for one in tasks]
    if (store := await runtime.durable.open_if_used()) is None:
        return {"queues": [], "tasks": tasks_json, "workers": []}
    depths, workers = await store.queues(), await store.workers(runtime.clock.now() - LEASE_SECONDS)
    return {
        "queues": [_queue_json(one) for one in depths],
        "tasks": tasks_json,
        "workers": [{**one._asdict(), "seen_at": iso_time(one.seen_at)} for one in workers],
    }


def _queue_json(depth: QueueDepth | TaskQueueDepth) -> JsonObject:
    return {**depth._asdict(), "oldest_at": iso_time(depth.oldest_at) if depth.oldest_at else None}


@router.get(
    "/v1/traces", summary="List traces", response_model=None, responses=answers(TracesOut),
    dependencies=[scope("traces:read")],
)  # fmt: skip
async def traces(
    request: Request,
    cursor: PageCursor,
    agent: str = "",
    session: str = "",
    status: Literal["", RunStatus] = "",
    limit: Limit = 50,
) -> JsonObject:
    """Lists the newest runs, one line each."""
    query = RunQuery(*viewer_of(request), agent, session, status, limit, after=cursor.after)
    page = await runtime_of(request).runs.traces(query)
    return {"traces": page.runs, "next": cursor.next(page.next)}


@router.get(
    "/v1/traces/{trace_id}", summary="One trace", response_model=None,
    responses={**answers(TraceSpansOut), **problems(404)}, dependencies=[scope("traces:read")],
)  # fmt: skip
async def trace(trace_id: str, request: Request) -> JsonObject:
    """Returns the span tree of one trace."""
    found = await runtime_of(request).runs.trace(trace_id, viewer_of(request))
    if found is None:
        raise TraceNotFound(f"There is no trace {trace_id!r}, or it has expired.")
    return found


router.get(
    METRICS_PATH,
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    dependencies=[Depends(METRICS_SCOPE)],
)(metrics)
