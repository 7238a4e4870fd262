"""The pages of the server: the web console, the description of the routes, and the index `/`.

The files of the console stand in the folder `console` of the package: its page, its modules, and in `vendor/`
their libraries, which `scripts/console_libraries.py` places. They hold no data, so they need no key. A page
loads no file from anywhere else.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from msgspec import Struct
from starlette.responses import RedirectResponse

from astromesh import __version__
from astromesh.api.dependencies import scope
from astromesh.api.fast_routes import json_response
from astromesh.api.requests import headers_of, runtime_of
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
    page = find("openapi.html")
    assert page is not None
    return _static(page.body, page.media_type)


@router.get("/docs/{name}")
async def docs_file(name: str, request: Request) -> Response:
    """Returns a script or a style of the page."""
    if name == "openapi.js" and (script := find(name)) is not None:
        return _static(script.body, script.media_type)
    stored = stored_compressed(name) if name in _LIBRARIES else None
    if stored is None:
        raise NotFound(f"There is no file {request.url.path}.")
    media_type = f"{_LIBRARIES[name]}; charset=utf-8"
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return _static(await asyncio.to_thread(gzip.decompress, stored), media_type)
    return _static(stored, media_type, {"content-encoding": "gzip"})


def _static(body: bytes, media_type: str, more: dict[str, str] | None = None) -> Response:
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": CONTENT_SECURITY_POLICY,
        "vary": "accept-encoding",
        **(more or {}),
    }
    return Response(body, media_type=media_type, headers=headers)


# -- the console ---------------------------------------------------------------------------------------------


@router.get("/console")
async def console(request: Request) -> Response:
    """Redirects to the page: its relative addresses need the slash."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/console/", 307)


@router.get("/console/{path:path}")
async def console_file(path: str, request: Request) -> Response:
    """Returns the page, a module or a library. Browsers ask each time whether it has changed."""
    enabled = runtime_of(request).state.configuration.runtime.spec.console.enabled
    file = find(path) if enabled else None
    if file is None:
        switch = "" if enabled else " `spec.console.enabled` of runtime.yaml switches the console off."
        raise NotFound(f"There is no file {request.url.path}.{switch}")
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": CONTENT_SECURITY_POLICY,
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            file.compressed, media_type=file.media_type, headers={**headers, "content-encoding": "gzip"}
        )
    return Response(file.body, media_type=file.media_type, headers=headers)


# -- files ---------------------------------------------------------------------------------------------------

#: Browsers accept scripts, styles and data of this server, and nothing inline (W3C, CSP Level 3).
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PACKAGE = Path(str(files("astromesh") / "console"))
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: the form of a served file's path; it leads to nothing outside the package
_PATH = re.compile(r"(?:(?:pages|vendor)/)?[a-z-]{1,40}\.(?:css|html|js|svg)")
_PAGE, _WITHOUT_LIBRARIES = "index.html", "without-libraries.html"


class ConsoleFile(Struct, frozen=True):
    """A file as it is sent: its bytes, the same compressed, its media type, an entity tag of its content."""

    body: bytes
    compressed: bytes
    media_type: str
    etag: str


def find(path: str) -> ConsoleFile | None:
    """Returns a file by its path below `/console/`, or None if there is no such file.

    The empty path is the page. Without its libraries the page says which command brings them.
    """
    if not path:
        path = _PAGE if has_libraries() else _WITHOUT_LIBRARIES
    file = _PACKAGE / path
    if not _PATH.fullmatch(path) or not file.is_file():
        return None
    return _load(file, file.stat().st_mtime_ns)


def has_libraries() -> bool:
    return (_PACKAGE / "vendor" / "preact.js").is_file()


def stored_compressed(name: str) -> bytes | None:
    """Returns a library that is stored compressed (gzip), or None without it."""
    file = _PACKAGE / "vendor" / f"{name}.gz"
    return file.read_bytes() if file.is_file() else None


@lru_cache(maxsize=128)
def _load(file: Path, changed: int) -> ConsoleFile:
    """Reads and compresses a file once for each of its versions."""
    body = file.read_bytes()
    return ConsoleFile(
        body,
        gzip.compress(body, 6, mtime=0),
        _MEDIA_TYPES[file.suffix],
        f'"{hashlib.sha256(body).hexdigest()[:24]}"',
    )
