"""Runs of agents and looks at the server's health, answered before the routes of FastAPI are looked at.

What FastAPI does for a request, its dependencies and its routing, costs about as much as a whole run, and
loading it takes a third of a start. The routes themselves stay what they are, for the OpenAPI description;
their guards and handlers are the ones used here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh.api import errors, health
from astromesh.api.running import MAY_RUN, RUN, run
from astromesh.errors import AstromeshError

_HEAD, _TAIL = RUN.split("{name}")
_HEALTH: dict[str, Callable[[Request], Awaitable[Response]]] = {
    health.LIVE: health.live,
    health.READY: health.ready,
}


class Direct:
    """ASGI middleware; the innermost one, so that everything around it holds for these requests too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = asked_agent(scope)
        look = None if name else asked_health(scope)
        if not name and look is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await (look(request) if look else _run(request, name))
        except AstromeshError as error:
            response = await errors.told(request, error)
        except ClientDisconnect as error:
            response = await errors.left(request, error)
        await response(scope, receive, send)


async def _run(request: Request, name: str) -> Response:
    request.scope["path_params"] = {"name": name}
    await MAY_RUN(request)
    return await run(name, request)


def asked_agent(scope: Scope) -> str:
    """The agent that a request asks to run; empty where it is another request."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
        return ""
    path: str = scope["path"]
    name = path[len(_HEAD) : -len(_TAIL)]
    return name if path == f"{_HEAD}{name}{_TAIL}" and "/" not in name else ""


def asked_health(scope: Scope) -> Callable[[Request], Awaitable[Response]] | None:
    """What answers a request for the server's health; None where it is another request."""
    if scope["type"] != "http" or scope["method"] != "GET" or scope.get("root_path"):
        return None
    return _HEALTH.get(scope["path"])
