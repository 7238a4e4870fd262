"""AuthMiddleware: a request's token becomes its ClientContext, or the request is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.deps import Deps
from astromesh.errors import AstromeshError, Overloaded, Unauthorized
from astromesh.identity.jwt import JwtOptions, JwtVerifier, open_verifier
from astromesh.mcp.server.client_context import NOBODY, ClientContext, client_of
from astromesh.net.http import Http

#: where the client stands in a request's ASGI scope
CLIENT = "astromesh.client"


class AuthMiddleware:
    """Checks tokens as the runtime does (`astromesh.identity`).

    Args:
        secret: shared with the issuer, for HS256, 32 bytes or more.
        jwks_url: of the issuer's keys, for RS256 and ES256.
        issuer, audience: required `iss` and `aud`; the audience should be this server.
        required: whether a request without a token is refused; else it is nobody's, and guards decide.

    Raises:
        ConfigError: nothing to check tokens with, or a secret that can be guessed.
    """

    def __init__(  # noqa: PLR0913 (what tokens must be like)
        self,
        *,
        secret: str = "",
        jwks_url: str = "",
        issuer: str = "",
        audience: str = "",
        roles_claim: str = "roles",
        required: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._options = JwtOptions(
            secret=SecretStr(secret), jwks_url=jwks_url, issuer=issuer, audience=audience,
            roles_claim=roles_claim,
        )  # fmt: skip
        self._clock, self._required = clock or SystemClock(), required
        self._verifier: JwtVerifier | None = None
        if secret or not jwks_url:  # a secret that will not do is found here, not by the first request
            JwtVerifier(self._options.model_copy(update={"jwks_url": ""}), None, self._clock)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """While tokens can be checked."""
        async with Http() as http:
            self._verifier = open_verifier(self._options, Deps(http=http, clock=self._clock))
            yield

    def around(self, app: ASGIApp) -> ASGIApp:
        """The app behind this check."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                try:
                    scope[CLIENT] = await self.client(Headers(scope=scope))
                except (Unauthorized, Overloaded) as error:
                    await _refusal(error)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return guarded

    async def client(self, headers: Headers) -> ClientContext:
        """Who sends a request.

        Raises:
            Unauthorized: no token where one is required, or one that is not sound.
            Overloaded: its issuer's keys cannot be fetched.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not scheme and not self._required:
            return NOBODY
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthorized("Send a token as 'Authorization: Bearer TOKEN'.")
        if self._verifier is None:
            raise Overloaded("The server is not open yet.")
        return client_of(await self._verifier.caller(token.strip()))


def _refusal(error: AstromeshError) -> JSONResponse:
    """RFC 6750, section 3."""
    if isinstance(error, Overloaded):
        return JSONResponse({"error": "temporarily_unavailable"}, 503, {"retry-after": "1"})
    told = {"error": "invalid_token", "error_description": str(error)}
    return JSONResponse(told, 401, {"www-authenticate": 'Bearer error="invalid_token"'})
