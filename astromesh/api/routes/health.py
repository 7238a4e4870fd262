"""Whether the server lives, and whether it can work."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from astromesh import __version__
from astromesh.api.access import runtime_of
from astromesh.runtime.readiness import readiness
from astromesh.types import JsonObject

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", summary="Liveness")
async def live() -> JsonObject:
    """The process answers."""
    return {"status": "ok", "version": __version__}


@router.get("/ready", summary="Readiness")
async def ready(request: Request, response: Response) -> JsonObject:
    """Every declared store and provider answers; else, or when the server ends, 503."""
    runtime = runtime_of(request)
    if runtime.draining:
        response.status_code = 503
        return {"status": "shutting_down", "checks": {}, "agents_without_model": [], "agents_unavailable": []}
    found = await readiness(runtime)
    response.status_code = 200 if found.ready else 503
    return {
        "status": "ready" if found.ready else "not_ready",
        "checks": {name: answer.code for name, answer in found.answers.items()},
        "agents_without_model": list(found.without_model),
        "agents_unavailable": list(found.unavailable),
    }
