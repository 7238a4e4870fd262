"""The routes themselves: for machines as OpenAPI, for people as a page."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

from astromesh.api.dependencies import scope

router = APIRouter(include_in_schema=False)
#: what the page is made of: one script of its own, and Swagger UI from its usual place
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline'"
    " https://cdn.jsdelivr.net; img-src data: https://fastapi.tiangolo.com; connect-src 'self';"
    " frame-ancestors 'none'"
)


@router.get("/openapi.json", dependencies=[scope("agents:read")])
async def openapi(request: Request) -> Response:
    """OpenAPI 3.1, made in a thread, once for all who ask: it takes a quarter of a second of a processor."""
    state = request.app.state
    making: asyncio.Task[bytes] | None = getattr(state, "description", None)
    if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
        making = state.description = asyncio.create_task(asyncio.to_thread(_description, request.app))
    return Response(await asyncio.shield(making), media_type="application/json")


def _description(app: FastAPI) -> bytes:
    return orjson.dumps(app.openapi())


@router.get("/docs", dependencies=[scope("agents:read")])
async def docs(request: Request) -> Response:
    """A page over the description; browsers send no key, so that it is of use where none is needed."""
    page = get_swagger_ui_html(
        openapi_url=f"{request.scope.get('root_path', '')}/openapi.json", title="astromesh"
    )
    page.headers["content-security-policy"] = _CONTENT_SECURITY_POLICY
    return page
