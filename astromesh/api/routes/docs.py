"""The description of the routes: OpenAPI for machines, a page for people."""

from __future__ import annotations

import asyncio
import gzip

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.responses import RedirectResponse

from astromesh import __version__
from astromesh.api.dependencies import scope
from astromesh.api.fast_routes import json_response
from astromesh.api.requests import headers_of, runtime_of
from astromesh.console import files
from astromesh.errors import NotFound

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
#: what is stored compressed, with its media type
_LIBRARIES = {"swagger-ui.js": "text/javascript", "swagger-ui.css": "text/css"}


@router.get("/")
async def index(request: Request) -> Response:
    """Returns where things are, and redirects browsers to the console. It holds no data and needs no key."""
    has_console = runtime_of(request).state.configuration.runtime.spec.console.enabled
    if has_console and "text/html" in headers_of(request.scope).get("accept", ""):
        return RedirectResponse(f"{request.scope.get('root_path', '')}/console/", 307)
    paths = {getattr(route, "path", "") for route in request.app.router.routes}
    links = {
        name: path for name, path in _INDEX.items() if path in paths and (has_console or name != "console")
    }
    return json_response({"name": "astromesh", "version": __version__, "links": links})


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


@router.get("/docs")
async def docs() -> Response:
    """Returns a page that shows the description. It asks for a key where the server does."""
    page = files.find("openapi.html")
    assert page is not None
    return _static(page.body, page.media_type)


@router.get("/docs/{name}")
async def docs_file(name: str, request: Request) -> Response:
    """Returns a script or a style of the page."""
    if name == "openapi.js" and (script := files.find(name)) is not None:
        return _static(script.body, script.media_type)
    stored = files.stored_compressed(name) if name in _LIBRARIES else None
    if stored is None:
        raise NotFound(f"There is no file {request.url.path}.")
    media_type = f"{_LIBRARIES[name]}; charset=utf-8"
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return _static(await asyncio.to_thread(gzip.decompress, stored), media_type)
    return _static(stored, media_type, {"content-encoding": "gzip"})


def _static(body: bytes, media_type: str, more: dict[str, str] | None = None) -> Response:
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": files.CONTENT_SECURITY_POLICY,
        "vary": "accept-encoding",
        **(more or {}),
    }
    return Response(body, media_type=media_type, headers=headers)
