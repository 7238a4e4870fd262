"""Who is calling, and what may they do (api.md section 1, Authentication; reliability.md S1-S3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from astromesh.errors import Forbidden, Unauthorized
from astromesh.types import CallerContext

TENANT = "default"
#: the principal of a server without authentication: it is bound to loopback, and may do everything
ANONYMOUS = CallerContext(user_id="anonymous", tenant_id=TENANT, scopes=frozenset({"admin"}))


class Authenticator(Protocol):
    """One way of telling who is calling."""

    async def authenticate(self, token: str) -> CallerContext | None:
        """The caller that a key or token stands for, or None where it is not valid here."""


class Auth:
    """Args: methods: tried in order; empty means that everybody is the anonymous local principal."""

    def __init__(self, methods: tuple[Authenticator, ...] = ()) -> None:
        self._methods = methods

    async def authorise(self, headers: Mapping[str, str], scope: str, resource: str = "") -> CallerContext:
        """The caller, if it may do this.

        Args:
            headers: of the request, names in lower case.
            scope: the route's declared scope, e.g. `agents:run`.
            resource: what it acts on; `agents:run:<name>` grants a single agent.

        Raises:
            Unauthorized: no credential, or one that is not valid.
            Forbidden: a valid one without this scope.
        """
        caller = await self.identify(headers)
        if not permits(caller.scopes, scope, resource):
            raise Forbidden(f"This needs the scope {scope!r}, which your key or token does not have.")
        return caller

    async def authorise_some(self, headers: Mapping[str, str], scope: str) -> CallerContext:
        """The caller, if it may do this to at least one resource; which one is the route's to check."""
        caller = await self.identify(headers)
        if not (permits(caller.scopes, scope) or any(s.startswith(scope + ":") for s in caller.scopes)):
            raise Forbidden(f"This needs the scope {scope!r}, which your key or token does not have.")
        return caller

    async def identify(self, headers: Mapping[str, str]) -> CallerContext:
        if not self._methods:
            return ANONYMOUS
        token = credential(headers)
        if not token:
            raise Unauthorized("Send a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.")
        for method in self._methods:
            if (caller := await method.authenticate(token)) is not None:
                return caller
        raise Unauthorized("The key or token is not valid here, or no longer.")


def credential(headers: Mapping[str, str]) -> str:
    """The bearer token or API key of a request, empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip()


def permits(granted: frozenset[str], scope: str, resource: str = "") -> bool:
    """Whether scopes cover a scope: literally, by `family:*`, for one resource, or as `admin`."""
    if "admin" in granted or scope in granted or f"{scope.partition(':')[0]}:*" in granted:
        return True
    return bool(resource) and f"{scope}:{resource}" in granted
