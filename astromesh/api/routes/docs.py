"""The description of the routes: OpenAPI for machines, a page for people."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

from astromesh import __version__
from astromesh.api.dependencies import scope
from astromesh.types import JsonObject

router = APIRouter(include_in_schema=False)
#: what `/` names, as far as the server has it
_INDEX = {
    "console": "/console",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "agents": "/v1/agents",
    "models": "/v1/models",
    "mcp": "/mcp",
    "health": "/health",
    "metrics": "/metrics",
}
#: the page holds one inline script, and loads Swagger UI from its usual place
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline'"
    " https://cdn.jsdelivr.net; img-src data: https://fastapi.tiangolo.com; connect-src 'self';"
    " frame-ancestors 'none'"
)


@router.get("/")
async def index(request: Request) -> JsonObject:
    """Returns where things are. It holds no data, and is public like the health checks."""
    paths = {getattr(route, "path", "") for route in request.app.router.routes}
    links = {name: path for name, path in _INDEX.items() if path in paths}
    return {"name": "astromesh", "version": __version__, "links": links}


@router.get("/openapi.json", dependencies=[scope("agents:read")])
async def openapi(request: Request) -> Response:
    """Returns the OpenAPI 3.1 description of the routes. The server builds it once, in a thread."""
    state = request.app.state
    task: asyncio.Task[bytes] | None = getattr(state, "description", None)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = state.description = asyncio.create_task(asyncio.to_thread(_description, request.app))
    return Response(await asyncio.shield(task), media_type="application/json")


def _description(app: FastAPI) -> bytes:
    return orjson.dumps(app.openapi())


@router.get("/docs", dependencies=[scope("agents:read")])
async def docs(request: Request) -> Response:
    """Returns a page that shows the description. It needs a server without authentication."""
    page = get_swagger_ui_html(
        openapi_url=f"{request.scope.get('root_path', '')}/openapi.json", title="astromesh"
    )
    page.headers["content-security-policy"] = _CONTENT_SECURITY_POLICY
    return page
