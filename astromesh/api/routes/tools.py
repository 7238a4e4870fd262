"""Tools and providers of the loaded agents."""

from __future__ import annotations

from fastapi import APIRouter, Request

from astromesh.api.access import runtime_of
from astromesh.api.declared import scope
from astromesh.runtime.listing import tools_of
from astromesh.types import JsonObject

router = APIRouter(tags=["tools"])


@router.get("/v1/tools", summary="List tools", dependencies=[scope("tools:read")])
async def tools(request: Request) -> JsonObject:
    """Every tool that some agent may use, in function-calling form, with the agents that may."""
    return {"tools": tools_of(runtime_of(request).agents.values())}


@router.get("/v1/providers", summary="List providers", dependencies=[scope("agents:read")])
async def providers(request: Request) -> JsonObject:
    """Every model that some agent may use, with the state of its circuit breaker and its latency."""
    return {"providers": runtime_of(request).opened.health.snapshot()}
