"""Whether the server lives, and whether it can work: asked often, by whoever decides to end it."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from astromesh import __version__
from astromesh.api.auth import runtime_of
from astromesh.runtime.monitoring import check_readiness
from astromesh.types import JsonObject

LIVE, READY = "/health/live", "/health/ready"


async def live(request: Request) -> Response:
    """The process answers."""
    return _health_response(200, {"status": "ok", "version": __version__})


async def ready(request: Request) -> Response:
    """Every declared store and provider answers; else, or when the server ends, 503."""
    runtime = runtime_of(request)
    if runtime.draining:
        told = {"status": "shutting_down", "checks": {}, "agents_without_model": [], "agents_unavailable": []}
        return _health_response(503, told)
    found = await check_readiness(runtime)
    told = {
        "status": "ready" if found.ready else "not_ready",
        "checks": {name: answer.code for name, answer in found.results.items()},
        "agents_without_model": list(found.agents_without_model),
        "agents_unavailable": list(found.agents_unavailable),
    }
    return _health_response(200 if found.ready else 503, told)


def _health_response(status: int, body: JsonObject) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
