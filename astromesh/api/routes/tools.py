"""Tools and providers of the loaded agents."""

from __future__ import annotations

from fastapi import APIRouter, Request

from astromesh.api.access import runtime_of, scope
from astromesh.types import JsonObject

router = APIRouter(tags=["tools"])


@router.get("/v1/tools", summary="List tools", dependencies=[scope("tools:read")])
async def tools(request: Request) -> JsonObject:
    """Every tool that some agent may use, in function-calling form, with the agents that may."""
    found: dict[str, JsonObject] = {}
    for agent in runtime_of(request).agents.values():
        for spec in agent.tools.specs():
            function = spec.to_function()
            line = found.setdefault(
                f"{spec.name}:{function}",
                {"name": spec.name, "effect": spec.effect, **function, "agents": []},
            )
            line["agents"].append(agent.name)
    return {"tools": sorted(found.values(), key=lambda t: (str(t["name"]), t["agents"]))}


@router.get("/v1/providers", summary="List providers", dependencies=[scope("agents:read")])
async def providers(request: Request) -> JsonObject:
    """Every model that some agent may use, with the state of its circuit breaker and its latency."""
    return {"providers": runtime_of(request).opened.health.snapshot()}
