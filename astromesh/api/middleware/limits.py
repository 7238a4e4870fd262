"""Limits on requests: the size of a head (413, 414), how many requests and sockets are open at once (503)."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from astromesh.api.errors import error_response
from astromesh.api.middleware.fair_start import FairStart
from astromesh.errors import AstromeshError, Overloaded, PayloadTooLarge, UriTooLong

#: bytes of all header lines together, and of path and query
MAX_HEADER_BYTES, MAX_TARGET_BYTES = 32_768, 8_192
#: where the state of a request says that its body has not arrived in full
BODY_INCOMPLETE = "body_incomplete"
#: no limit holds for these: an orchestrator that gets no answer here kills a busy server
HEALTH_PATHS = ("/health", "/health/live", "/health/ready")


class ConcurrencyLimits(NamedTuple):
    """How many requests and sockets one process serves at once."""

    requests: int = 1_000
    sockets: int = 10_000


DEFAULT_LIMITS = ConcurrencyLimits()


class RequestLimits:
    """ASGI middleware that rejects what is too large or too much before any work is done for it.

    Args:
        limits: how many requests and sockets it serves at once.
        fair_start: decides when an accepted request starts.
    """

    def __init__(self, app: ASGIApp, limits: ConcurrencyLimits, fair_start: FairStart) -> None:
        self._app = app
        self._limits = limits
        self._fair_start = fair_start
        self._requests = self._sockets = self._incomplete = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        state, is_health = scope["state"], scope["path"] in HEALTH_PATHS
        incomplete = state.get(BODY_INCOMPLETE)
        refused = head_fault(scope)
        if refused is None and incomplete:
            refused = self._too_many_incomplete()
        elif refused is None and not is_health:
            refused = self._too_many()
        if refused is not None:
            await error_response(refused, scope)(scope, receive, send)
            return
        if incomplete:
            receive = self._counted_receive(scope, receive)
            self._incomplete += 1
        else:
            self._requests += 1
        try:
            if not is_health and (turn := self._fair_start.enter()) is not None:
                await turn
            await self._app(scope, receive, send)
        finally:
            if state.get(BODY_INCOMPLETE):
                self._incomplete -= 1
            else:
                self._requests -= 1

    def _counted_receive(self, scope: Scope, receive: Receive) -> Receive:
        """Counts a request as active once its body has arrived in full.

        The returned `receive` raises Overloaded where too many requests are active by then.
        """

        async def counted() -> Message:
            message = await receive()
            if not message.get("more_body") and scope["state"].get(BODY_INCOMPLETE):
                if (refused := self._too_many()) is not None:
                    raise refused
                scope["state"][BODY_INCOMPLETE] = False
                self._incomplete -= 1
                self._requests += 1
            return message

        return counted

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = head_fault(scope)
        if refused is None and self._sockets >= self._limits.sockets:
            refused = _overloaded(f"{self._sockets} sockets are open", "max_sockets")
        if refused is not None:
            await WebSocket(scope, receive, send).send_denial_response(error_response(refused))
            return
        self._sockets += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._sockets -= 1

    def _too_many_incomplete(self) -> AstromeshError | None:
        """Incomplete requests have the bound of sockets, because they, too, only wait for their clients."""
        if self._incomplete < self._limits.sockets:
            return None
        return _overloaded(f"{self._incomplete} requests are incomplete", "max_sockets")

    def _too_many(self) -> AstromeshError | None:
        if self._requests < self._limits.requests:
            return None
        return _overloaded(f"{self._requests} requests are active", "max_requests")


def _overloaded(load: str, limit: str) -> AstromeshError:
    return Overloaded(f"{load}, as many as spec.api.{limit} allows. Try again later.")


def head_fault(scope: Scope) -> AstromeshError | None:
    """Returns what is wrong with the size of a request's head, None where nothing is."""
    target = len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b""))
    if target > MAX_TARGET_BYTES:
        return UriTooLong(f"Path and query have {target} bytes; the limit is {MAX_TARGET_BYTES}.")
    size = sum(map(len, chain.from_iterable(scope["headers"])))
    if size > MAX_HEADER_BYTES:
        return PayloadTooLarge(f"The headers have {size} bytes; the limit is {MAX_HEADER_BYTES}.")
    return None
