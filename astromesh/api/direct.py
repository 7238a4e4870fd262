"""Runs of agents, answered before the routes of FastAPI are looked at.

What FastAPI does for a request, its dependencies and its routing, costs about as much as a whole run. The
route itself stays what it is, for the OpenAPI description; its guards and its handler are the ones used here.
"""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh.api import errors
from astromesh.api.routes import agents
from astromesh.errors import AstromeshError

_ROUTE = "/v1/agents/{name}/run"
_HEAD, _TAIL = _ROUTE.split("{name}")


class DirectRuns:
    """ASGI middleware; the innermost one, so that everything around it holds for these requests too."""

    def __init__(self, app: ASGIApp) -> None:
        route = next(r for r in agents.router.routes if isinstance(r, APIRoute) and r.path == _ROUTE)
        self._app = app
        self._guards = [d.dependency for d in route.dependencies if d.dependency is not None]
        self._run = route.endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = asked_agent(scope)
        if not name:
            await self._app(scope, receive, send)
            return
        scope["path_params"] = {"name": name}
        request = Request(scope, receive)
        try:
            response = await self._answer(request, name)
        except AstromeshError as error:
            response = await errors.told(request, error)
        except ClientDisconnect as error:
            response = await errors.left(request, error)
        await response(scope, receive, send)

    async def _answer(self, request: Request, name: str) -> Response:
        for guard in self._guards:
            await guard(request)
        response: Response = await self._run(name=name, request=request)
        return response


def asked_agent(scope: Scope) -> str:
    """The agent that a request asks to run; empty where it is another request."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
        return ""
    path: str = scope["path"]
    name = path[len(_HEAD) : -len(_TAIL)]
    return name if path == f"{_HEAD}{name}{_TAIL}" and "/" not in name else ""
