"""Whether the server lives, and whether it can work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response

from astromesh import __version__
from astromesh.api.access import runtime_of
from astromesh.errors import AstromeshError
from astromesh.types import JsonObject

router = APIRouter(prefix="/health", tags=["health"])
_PATIENCE = 3.0


@router.get("/live", summary="Liveness")
async def live() -> JsonObject:
    """The process answers."""
    return {"status": "ok", "version": __version__}


@router.get("/ready", summary="Readiness")
async def ready(request: Request, response: Response) -> JsonObject:
    """Every declared store and provider answers; 503 when a store does not, or no provider of an agent."""
    checks = runtime_of(request).opened.checks
    results = dict(
        zip(checks, await asyncio.gather(*(_check(ping) for ping in checks.values())), strict=True)
    )
    unusable = [
        name for name, agent in runtime_of(request).agents.items() if not _can_run(agent.needs, results)
    ]
    ok = all(r == "ok" for name, r in results.items() if name.startswith("store:")) and not unusable
    response.status_code = 200 if ok else 503
    return {"status": "ready" if ok else "not_ready", "checks": results, "agents_without_model": unusable}


async def _check(ping: Callable[[], Awaitable[None]]) -> str:
    try:
        async with asyncio.timeout(_PATIENCE):
            await ping()
    except TimeoutError:
        return f"no answer within {_PATIENCE:g} s"
    except AstromeshError as error:
        return error.code
    return "ok"


def _can_run(providers: tuple[str, ...], results: dict[str, str]) -> bool:
    return any(results.get(f"provider:{name}") == "ok" for name in providers)
