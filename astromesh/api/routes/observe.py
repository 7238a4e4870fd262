"""Traces and metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from astromesh.api.access import ScopeElsewhere, caller_of, runtime_of, viewer_of
from astromesh.api.declared import scope
from astromesh.api.routes.runs import Status
from astromesh.errors import TraceNotFound
from astromesh.telemetry.exposition import exposition
from astromesh.types import JsonObject

router = APIRouter(tags=["observability"])


@router.get("/v1/traces", summary="List traces", dependencies=[scope("traces:read")])
async def traces(
    request: Request,
    agent: str = "",
    session: str = "",
    status: Status = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> JsonObject:
    """The newest runs, one line each."""
    viewer = viewer_of(caller_of(request))
    return {"traces": await runtime_of(request).traces.list(viewer, agent, status, limit, session)}


@router.get("/v1/traces/{trace_id}", summary="One trace", dependencies=[scope("traces:read")])
async def trace(trace_id: str, request: Request) -> JsonObject:
    """The span tree of one trace."""
    caller = caller_of(request)
    found = await runtime_of(request).traces.get(trace_id, viewer_of(caller))
    if found is None:
        raise TraceNotFound(f"There is no trace {trace_id!r}, or it is no longer kept.")
    return found


@router.get("/metrics", summary="Prometheus metrics", dependencies=[Depends(ScopeElsewhere("metrics:read"))])
async def metrics(request: Request) -> Response:
    """The text exposition format of Prometheus."""
    return Response(exposition(runtime_of(request).metrics), media_type="text/plain; version=0.0.4")
