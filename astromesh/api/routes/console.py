"""The web console: its page, its modules and their libraries. They hold no data, so they need no key."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from astromesh.api.requests import runtime_of
from astromesh.console import files
from astromesh.errors import NotFound

router = APIRouter(include_in_schema=False)


@router.get("/console")
async def console(request: Request) -> Response:
    """Redirects to the page: its relative addresses need the slash."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/console/", 307)


@router.get("/console/{path:path}")
async def console_file(path: str, request: Request) -> Response:
    """Returns the page, a module or a library. Browsers ask each time whether it has changed."""
    enabled = runtime_of(request).state.configuration.runtime.spec.console.enabled
    file = files.find(path) if enabled else None
    if file is None:
        switch = "" if enabled else " `spec.console.enabled` of runtime.yaml switches the console off."
        raise NotFound(f"There is no file {request.url.path}.{switch}")
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": files.CONTENT_SECURITY_POLICY,
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
