"""Authentication and scopes: who is calling, and what they may do (api.md section 1.

Reliability.md S1-S3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Protocol, cast
from urllib.parse import urlsplit

from starlette.requests import Request

from astromesh.access.keys import DEFAULT_TENANT, ApiKeyAuthenticator, ApiKeyStore, open_authenticator
from astromesh.access.scopes import ANY_SESSION, Viewer, permits, permits_any
from astromesh.api.requests import headers_of
from astromesh.errors import Forbidden, RateLimited, Unauthorized
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.runtime.engine import AgentRuntime
from astromesh.storage.sqlite import FILE, shared_database
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tools.base import RateLimit
from astromesh.tools.rate_limit import SlidingWindow
from astromesh.types import CallerContext

#: the principal of a server without authentication: it is bound to loopback, and may do everything
ANONYMOUS = CallerContext(user_id="anonymous", tenant_id=DEFAULT_TENANT, scopes=frozenset({"admin"}))


class Authenticator(Protocol):
    """One way of telling who is calling."""

    async def authenticate(self, token: str) -> CallerContext | None:
        """The caller that a key or token stands for, or None where it is not valid here."""


class Auth:
    """Admits callers.

    Args:
        methods: tried in order; empty means that everybody is the anonymous local principal.
        origins: web pages that may call without a credential, beside those of this machine; `*` for all.
        rate: how many calls each principal may make; None for as many as it likes.
        clock: what `rate` is measured by.
    """

    def __init__(
        self,
        methods: tuple[Authenticator, ...] = (),
        origins: Collection[str] = (),
        rate: RateLimit | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._methods = methods
        self._origins = origins
        self._calls = SlidingWindow(rate) if rate else None
        self._clock = clock or SystemClock()

    async def authorise(self, headers: Mapping[str, str], scope: str, resource: str = "") -> CallerContext:
        """The caller, if it may do this.

        Args:
            headers: of the request, names in lower case.
            scope: the route's declared scope, e.g. `agents:run`.
            resource: what it acts on; `agents:run:<name>` grants a single agent.

        Raises:
            Unauthorized: no credential, or one that is not valid.
            Forbidden: a valid one without this scope.
            RateLimited: it has called too often.
        """
        caller = await self.identify(headers)
        self.count(caller)
        if not permits(caller.scopes, scope, resource):
            raise Forbidden(f"This needs the scope {scope!r}, which your key or token does not have.")
        return caller

    async def authorise_some(self, headers: Mapping[str, str], scope: str) -> CallerContext:
        """The caller, if it may do this to at least one resource; which one is the route's to check."""
        caller = await self.identify(headers)
        self.count(caller)
        if not permits_any(caller.scopes, scope):
            raise Forbidden(f"This needs the scope {scope!r}, which your key or token does not have.")
        return caller

    def count(self, caller: CallerContext) -> None:
        """Counts a call of a principal, over all its keys, tokens and sockets.

        Raises:
            RateLimited
        """
        if self._calls is None:
            return
        wait = self._calls.take((caller.tenant_id, caller.user_id), self._clock.monotonic())
        if wait > 0:
            raise RateLimited("You have called too often (spec.api.rate_limit).", wait)

    async def identify(self, headers: Mapping[str, str]) -> CallerContext:
        if not self._methods:
            self._refuse_foreign_pages(headers)
            return ANONYMOUS
        token = credential(headers)
        if not token:
            raise Unauthorized("Send a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.")
        for method in self._methods:
            if (caller := await method.authenticate(token)) is not None:
                return caller
        raise Unauthorized("The key or token is not valid here, or no longer.")

    def _refuse_foreign_pages(self, headers: Mapping[str, str]) -> None:
        """A browser lets any page send requests to this machine, and open WebSockets, in its user's name.

        A page may also call this machine by its own site's name, which then leads here (DNS rebinding).
        """
        origin = headers.get("origin")
        if origin and not {origin, "*"} & set(self._origins) and not is_local(origin):
            raise Forbidden(f"Pages of {origin} may not call this server; spec.api.cors_origins allows them.")
        host = _host_name(headers.get("host", ""))
        if not is_private_host(host) and host not in map(_hostname, self._origins):
            raise Forbidden(
                f"This server is called by this machine's own names, not {host!r}; spec.api.cors_origins "
                "allows others."
            )


def is_local(origin: str) -> bool:
    """Whether an Origin header names a page of this machine."""
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False


@lru_cache(maxsize=64)
def _host_name(host: str) -> str:
    """The name in a Host header."""
    return _hostname(f"//{host}")


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=64)
def is_private_host(host: str) -> bool:
    """Whether no page of another site can be called so: an address, or a name that nobody can register.

    A page whose name is made to lead to this machine (DNS rebinding) sends no Origin with what it reads.
    """
    name = host.rstrip(".")
    return "." not in name or name.endswith(".localhost") or _is_address(name)


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def credential(headers: Mapping[str, str]) -> str:
    """The bearer token or API key of a request, empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip()


# -- as runtime.yaml says ------------------------------------------------------------------------------------
async def auth_from_config(runtime: AgentRuntime) -> Auth:
    """The authentication that `spec.auth.mode` of an open runtime names; it closes with the runtime."""
    spec = runtime.state.configuration.runtime.spec
    methods = [await method(runtime) for method in _METHODS[spec.auth.mode]]
    rate = (
        RateLimit(spec.api.rate_limit.max_calls, spec.api.rate_limit.window_seconds)
        if spec.api.rate_limit
        else None
    )
    return Auth(tuple(methods), spec.api.cors_origins, rate, runtime.clock)


async def _api_keys(runtime: AgentRuntime) -> ApiKeyAuthenticator:
    """The keys that `astromesh keys` keeps in the data folder."""
    resources = runtime.state.resources
    database = await shared_database(Deps(data_dir=runtime.data_dir, resources=resources), FILE)
    store = await ApiKeyStore.open(database, runtime.clock)
    keys: ApiKeyAuthenticator = await resources.shared(
        ApiKeyAuthenticator, lambda: open_authenticator(store, runtime.clock)
    )
    return keys


async def _tokens(runtime: AgentRuntime) -> Authenticator:
    """JSON Web Tokens; what checks them is loaded only where they are used."""
    jwt = runtime.state.configuration.runtime.spec.auth.jwt
    given = jwt.model_dump(exclude={"secret_env"})
    secret = runtime.env.get(jwt.secret_env, "") if jwt.secret_env else ""
    resources = runtime.state.resources
    deps = Deps(http=await resources.shared(Http, Http), clock=runtime.clock)
    method: Authenticator = await runtime.plugins.open(
        "authenticators", "jwt", {**given, "secret": secret}, deps
    )
    return method


#: a mode that is not here lets nobody in, because it does not start
_METHODS: Mapping[str, tuple[Callable[[AgentRuntime], Awaitable[Authenticator]], ...]] = {
    "none": (),
    "api_key": (_api_keys,),
    "jwt": (_tokens,),
    "both": (_api_keys, _tokens),
}


# Who may use a route, and how it reaches the runtime and its caller (reliability.md S1).

#: headers that programs send on behalf of others: proxies and browsers
_FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "origin")


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


class RemoteScope(RequiredScope):
    """A scope for callers of other machines; a program on this one needs none (api.md, Authentication)."""

    async def __call__(self, request: Request) -> None:
        if not is_local_request(request):
            await super().__call__(request)


def is_local_request(request: Request) -> bool:
    """Whether a program on this machine asks for itself: no page of a browser, and nobody through a proxy."""
    headers = request.headers
    if request.client is None or any(name in headers for name in _FORWARDING_HEADERS):
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
