"""Authentication and scopes: who is calling, and what they may do (docs/api.md, Authentication)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request

from astromesh.access.call_limits import CallLimit, CallState, Principal
from astromesh.access.keys import ApiKeyAuthenticator, ApiKeyStore, open_authenticator
from astromesh.access.scopes import ADMIN, missing_scope, permits, permits_any
from astromesh.api.middleware.limits import TENANT_LOAD
from astromesh.api.middleware.response import RATE_LIMIT
from astromesh.api.requests import caller_of, headers_of
from astromesh.errors import Forbidden, RateLimited, StoreError, Unauthorized
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.runtime.engine import AgentRuntime
from astromesh.storage.sqlite import FILE, shared_database
from astromesh.telemetry.clock import Clock
from astromesh.tools.base import RateLimit
from astromesh.tools.rate_limit import SlidingWindow
from astromesh.types import DEFAULT_TENANT, CallerContext

#: the principal of a server without authentication, which listens on loopback: it may do everything
ANONYMOUS = CallerContext(user_id="anonymous", tenant_id=DEFAULT_TENANT, scopes=frozenset({"admin"}))
#: in place of a scope: a route for every caller with a credential
ANY_SCOPE = ""
log = get_logger("astromesh.api")
#: headers that programs send on behalf of others: proxies and browsers
_FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "origin")


class Authenticator(Protocol):
    """One way to authenticate a caller."""

    async def authenticate(self, token: str) -> CallerContext | None:
        """Returns the caller that a key or token stands for, None where it is not valid here."""


class LocalCallLimit:
    """The calls of this process."""

    def __init__(self, limit: RateLimit, clock: Clock) -> None:
        self.limit, self._clock = limit, clock
        self._calls = SlidingWindow(limit)

    async def take(self, principal: Principal) -> CallState:
        now = self._clock.monotonic()
        wait = self._calls.take(principal, now)
        return CallState(wait, *self._calls.state(principal, now))


class FallbackCallLimit:
    """The calls of all processes. While what counts them is unavailable, this process counts its own."""

    def __init__(self, shared: CallLimit, local: LocalCallLimit) -> None:
        self.limit = shared.limit
        self._shared, self._local = shared, local

    async def take(self, principal: Principal) -> CallState:
        try:
            return await self._shared.take(principal)
        except StoreError as error:
            log.warning("calls_counted_here", error=str(error))
            return await self._local.take(principal)


class Auth:
    """Admits callers.

    Args:
        methods: tried in order; without any, everybody is the anonymous local principal.
        origins: web pages that may call without a credential, besides those of this machine; `*` for all.
        calls: how many calls each principal may make; None for any number.
    """

    def __init__(
        self,
        methods: tuple[Authenticator, ...] = (),
        origins: Collection[str] = (),
        calls: CallLimit | None = None,
    ) -> None:
        self._methods = methods
        self._origins = origins
        self._calls = calls

    @property
    def needs_credentials(self) -> bool:
        return bool(self._methods)

    @property
    def keys(self) -> ApiKeyStore | None:
        """The API keys that this server accepts; None: it accepts none."""
        return next((one.store for one in self._methods if isinstance(one, ApiKeyAuthenticator)), None)

    async def authorise(
        self,
        headers: Mapping[str, str],
        scope: str,
        resource: str = "",
        *,
        any_resource: bool = False,
        state: MutableMapping[str, Any] | None = None,
    ) -> CallerContext:
        """Returns the caller, if it may do this.

        Args:
            headers: of the request, names in lower case.
            scope: the scope that the route declares, e.g. `agents:run`, or ANY_SCOPE.
            resource: what the request acts on; `agents:run:<name>` grants a single agent.
            any_resource: a scope for at least one resource is enough; the route checks which one.
            state: of the request; its response tells how many calls are left.

        Raises:
            Unauthorized: there is no credential, or it is not valid.
            Forbidden: the credential is valid and lacks this scope.
            RateLimited: the principal has called too often.
            Overloaded: its tenant has more than its share of the active requests.
        """
        caller = await self._authenticate(headers) if self._methods else self._anonymous(headers)
        if self._calls is not None:
            await self.count(caller, state)
        if state is not None and TENANT_LOAD in state:
            state[TENANT_LOAD].enter(state, caller.tenant_id)
        if ADMIN in caller.scopes or scope == ANY_SCOPE:
            return caller
        if not (
            permits_any(caller.scopes, scope) if any_resource else permits(caller.scopes, scope, resource)
        ):
            raise missing_scope(scope)
        return caller

    async def count(self, caller: CallerContext, state: MutableMapping[str, Any] | None = None) -> None:
        """Counts a call of a principal, over all its keys, tokens and sockets. Args: state: see `authorise`.

        Raises:
            RateLimited
        """
        if self._calls is None:
            return
        wait, left, reset = await self._calls.take((caller.tenant_id, caller.user_id))
        if state is not None:
            state[RATE_LIMIT] = self._calls.limit.max_calls, left, reset
        if wait > 0:
            raise RateLimited("You have sent too many requests (spec.api.rate_limit). Try again later.", wait)

    async def _authenticate(self, headers: Mapping[str, str]) -> CallerContext:
        token = _credential(headers)
        if not token:
            raise Unauthorized("Send a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.")
        for method in self._methods:
            if (caller := await method.authenticate(token)) is not None:
                return caller
        raise Unauthorized("The key or token is not valid, or has expired.")

    def _anonymous(self, headers: Mapping[str, str]) -> CallerContext:
        """Returns the local principal, unless a page of another site is calling.

        A browser lets any page send requests to this machine, and open WebSockets, in its user's name. A page
        can also call this machine by the name of its own site, if that name resolves to it (DNS rebinding).
        """
        origin = headers.get("origin")
        if origin and not {origin, "*"} & set(self._origins) and not is_local_page(origin):
            raise Forbidden(
                f"Pages of {origin} may not call this server. spec.api.cors_origins can allow it."
            )
        host = _hostname(f"//{headers.get('host', '')}")
        if not is_private_host(host) and host not in map(_hostname, self._origins):
            raise Forbidden(
                f"Call this server by a name of this machine, not {host!r}. spec.api.cors_origins allows "
                "other names."
            )
        return ANONYMOUS


def caller_or_local(request: Request | None) -> CallerContext:
    """Returns the caller of a request; without one, which is over stdio, the user of this machine."""
    return ANONYMOUS if request is None else caller_of(request)


def is_local_page(origin: str) -> bool:
    """Whether an Origin header names a page of this machine."""
    return is_loopback(_hostname(origin))


@lru_cache(maxsize=64)
def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=64)
def is_private_host(host: str) -> bool:
    """Whether no other site can have this name: it is an address, or a name that nobody can register.

    A page whose site resolves to this machine (DNS rebinding) sends no Origin with what it reads.
    """
    name = host.rstrip(".")
    return "." not in name or name.endswith(".localhost") or _address(name) is not None


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine; IPv4 inside IPv6 counts as IPv4."""
    address = _address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _credential(headers: Mapping[str, str]) -> str:
    """The bearer token or API key of a request, empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip()


# -- what runtime.yaml configures --------------------------------------------------------------------------


async def auth_from_config(runtime: AgentRuntime) -> Auth:
    """Returns the authentication that `spec.auth.mode` names for an open runtime; it closes with it."""
    spec = runtime.state.configuration.runtime.spec
    methods = [await method(runtime) for method in _METHODS[spec.auth.mode]]
    return Auth(tuple(methods), spec.api.cors_origins, await _call_limit(runtime))


async def _call_limit(runtime: AgentRuntime) -> CallLimit | None:
    """Returns `spec.api.rate_limit`: over PostgreSQL of all processes, else of this one."""
    limit = runtime.state.configuration.runtime.spec.api.rate_limit
    if limit is None:
        return None
    rate = RateLimit(limit.max_calls, limit.window_seconds)
    local = LocalCallLimit(rate, runtime.clock)
    if not runtime.state.deps.storage_url.startswith("postgres"):
        return local
    options = rate._asdict()
    shared: CallLimit = await runtime.plugins.open("call_limits", "postgres", options, runtime.state.deps)
    return FallbackCallLimit(shared, local)


async def _api_keys(runtime: AgentRuntime) -> ApiKeyAuthenticator:
    """The keys that `astromesh keys` keeps in the data folder."""
    resources = runtime.state.resources
    synchronous = runtime.state.deps.sqlite_synchronous
    deps = Deps(data_dir=runtime.data_dir, resources=resources, sqlite_synchronous=synchronous)
    database = await shared_database(deps, FILE)
    store = await ApiKeyStore.open(database, runtime.clock)
    keys: ApiKeyAuthenticator = await resources.shared(
        ApiKeyAuthenticator, lambda: open_authenticator(store, runtime.clock)
    )
    return keys


async def _tokens(runtime: AgentRuntime) -> Authenticator:
    """JSON Web Tokens; their library is loaded only where they are used."""
    jwt = runtime.state.configuration.runtime.spec.auth.jwt
    options = jwt.model_dump(exclude={"secret_env"})
    options["secret"] = runtime.state.env.get(jwt.secret_env, "") if jwt.secret_env else ""
    deps = Deps(http=await runtime.state.resources.shared(Http, Http), clock=runtime.clock)
    method: Authenticator = await runtime.plugins.open("authenticators", "jwt", options, deps)
    return method


#: a mode that is missing here admits nobody: the server does not start
_METHODS: Mapping[str, tuple[Callable[[AgentRuntime], Awaitable[Authenticator]], ...]] = {
    "none": (),
    "api_key": (_api_keys,),
    "jwt": (_tokens,),
    "both": (_api_keys, _tokens),
}


# -- what routes declare -----------------------------------------------------------------------------------


class RequiredScope:
    """A dependency that admits callers with a scope and stores the caller in `request.state.caller`.

    Args:
        name: e.g. `agents:run`, or ANY_SCOPE.
        resource: path parameter whose value narrows the scope, e.g. `name` for `agents:run:<name>`.
        any_resource: a scope for at least one resource is enough; the route checks which one.
    """

    def __init__(self, name: str, resource: str = "", any_resource: bool = False) -> None:
        self.name = name
        self.resource = resource
        self.any_resource = any_resource

    async def __call__(self, request: Request) -> None:
        resource = request.path_params.get(self.resource, "") if self.resource else ""
        auth: Auth = request.app.state["auth"]
        request.state.caller = await auth.authorise(
            headers_of(request.scope),
            self.name,
            resource,
            any_resource=self.any_resource,
            state=request.scope.setdefault("state", {}),
        )


class RemoteScope(RequiredScope):
    """A scope that only callers of other machines need (docs/api.md, Authentication)."""

    async def __call__(self, request: Request) -> None:
        if not is_local_request(request):
            await super().__call__(request)


def is_local_request(request: Request) -> bool:
    """Whether a program on this machine calls for itself, neither a page in a browser nor a proxy."""
    headers = request.headers
    if request.client is None or any(name in headers for name in _FORWARDING_HEADERS):
        return False
    return is_loopback(request.client.host) and is_loopback(request.url.hostname or "")
