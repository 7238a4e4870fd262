"""Who may use a route, and how it reaches the runtime and its caller (reliability.md S1)."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from astromesh.api.auth import Auth, is_loopback
from astromesh.api.headers import headers_of
from astromesh.runtime.engine import ANY_SESSION, AgentRuntime
from astromesh.runtime.registry import Viewer
from astromesh.types import CallerContext

#: headers that programs send on behalf of others: proxies and browsers
_HANDED_ON = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "origin")


class RequiredScope:
    """A dependency that admits callers with a scope and notes who it is in `request.state.caller`.

    Args:
        name: e.g. `agents:run`.
        resource: path parameter whose value narrows the scope, e.g. `name` for `agents:run:<name>`.
        any_resource: a scope for some resource is enough to come in; the route checks which one.
    """

    def __init__(self, name: str, resource: str = "", any_resource: bool = False) -> None:
        self.name = name
        self.resource = resource
        self.any_resource = any_resource

    async def __call__(self, request: Request) -> None:
        resource = request.path_params.get(self.resource, "") if self.resource else ""
        auth: Auth = request.app.state["auth"]
        if self.any_resource:
            request.state.caller = await auth.authorise_some(headers_of(request.scope), self.name)
            return
        request.state.caller = await auth.authorise(headers_of(request.scope), self.name, resource)


class ScopeElsewhere(RequiredScope):
    """A scope for callers of other machines; a program on this one needs none (api.md, Authentication)."""

    async def __call__(self, request: Request) -> None:
        if not from_this_machine(request):
            await super().__call__(request)


def from_this_machine(request: Request) -> bool:
    """Whether a program on this machine asks for itself: no page of a browser, and nobody through a proxy."""
    headers = request.headers
    if request.client is None or any(name in headers for name in _HANDED_ON):
        return False
    return is_loopback(request.client.host) and is_loopback(request.url.hostname or "")


def runtime_of(request: Request) -> AgentRuntime:
    return cast(AgentRuntime, request.app.state["runtime"])


def caller_of(request: Request) -> CallerContext:
    return cast(CallerContext, request.state["caller"])


def owner_filter(caller: CallerContext) -> str | None:
    """The owner that a caller's lists are limited to; None where it may see all of its tenant."""
    return None if caller.scopes & ANY_SESSION else caller.user_id


def viewer_of(caller: CallerContext) -> Viewer:
    """Whose runs a caller may see and end: its own, or its tenant's."""
    return Viewer(caller.tenant_id, owner_filter(caller))
