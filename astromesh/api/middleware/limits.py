"""Limits on requests: size of the head, requests and sockets at once.

What is too large or too much is refused before anything is done for it (reliability.md S8). The
middleware also adds the
security headers, splits long bodies and writes the audit log before an audited answer goes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from astromesh.api.errors import error_response
from astromesh.api.middleware.audit import record_response
from astromesh.api.middleware.fair_start import FairStart
from astromesh.api.middleware.security_headers import add_security_headers
from astromesh.errors import AstromeshError, Overloaded, PayloadTooLarge, ShuttingDown

#: bytes of all header lines together, and of path and query
MAX_HEADER_BYTES, MAX_TARGET_BYTES = 32_768, 8_192


#: orchestrators ask these; an answer that is refused would get a busy server killed
_HEALTH_PREFIX = "/health/"


#: where a request's state says that its body is still coming
BODY_INCOMPLETE = "arriving"


#: bytes that are handed to a socket at once; who sends more lets others have their turn in between
CHUNK_BYTES = 256 * 1024


_STOPPED = "The server stopped before this was done; send the request again."


class ConcurrencyLimits(NamedTuple):
    """How much goes on at once in one process."""

    requests: int = 1_000
    sockets: int = 10_000


DEFAULT_LIMITS = ConcurrencyLimits()


class _TooManyRequests(Overloaded):
    """Raised to the border, too, where the last of a body comes and too many requests run by then."""


class RequestLimits:
    """ASGI middleware; the outermost one.

    Args:
        leaving: whether the server takes no more runs; what is cancelled then has run out of time.
        turns: who begins when.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ConcurrencyLimits,
        draining: Callable[[], bool] = lambda: False,
        fair_start: FairStart | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._draining = draining
        self._fair_start = fair_start or FairStart()
        self._requests = self._sockets = self._incomplete = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = _wrap_send(scope, send)
        arriving = scope["state"].get(BODY_INCOMPLETE)
        refused = head_fault(scope) or (self._too_many_incomplete() if arriving else self._too_many(scope))
        if refused is not None:
            await error_response(refused)(scope, receive, sent)
            return
        if arriving:
            receive = self._counted_receive(scope, receive)
            self._incomplete += 1
        else:
            self._requests += 1
        try:
            if (
                not scope["path"].startswith(_HEALTH_PREFIX)
                and (turn := self._fair_start.enter()) is not None
            ):
                await turn
            await self._app(scope, receive, sent)
        except _TooManyRequests as full:
            await error_response(full)(scope, receive, sent)
        except asyncio.CancelledError:
            if not self._is_shutdown_cancel():
                raise
            if not scope["state"].get("answering"):
                await error_response(ShuttingDown(_STOPPED))(scope, receive, sent)
        finally:
            if scope["state"].get(BODY_INCOMPLETE):
                self._incomplete -= 1
            else:
                self._requests -= 1

    def _counted_receive(self, scope: Scope, receive: Receive) -> Receive:
        """A request runs from when its body is there; until then it takes no room of those that run."""

        async def counted() -> Message:
            message = await receive()
            if not message.get("more_body") and scope["state"].get(BODY_INCOMPLETE):
                if (refused := self._too_many(scope)) is not None:
                    raise refused
                scope["state"][BODY_INCOMPLETE] = False
                self._incomplete -= 1
                self._requests += 1
            return message

        return counted

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = head_fault(scope)
        if refused is None and self._sockets >= self._limits.sockets:
            refused = Overloaded(f"{self._sockets} sockets are open here (spec.api.max_sockets); come back.")
        if refused is not None:
            await WebSocket(scope, receive, send).send_denial_response(error_response(refused))
            return
        self._sockets += 1
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_shutdown_cancel():
                raise
        finally:
            self._sockets -= 1

    def _is_shutdown_cancel(self) -> bool:
        """Whether the server itself ends what is under way: an end in order, and no crash."""
        task = asyncio.current_task()
        return self._draining() and task is not None and task.uncancel() == 0

    def _too_many_incomplete(self) -> AstromeshError | None:
        """Halves of requests are bounded as sockets are: they wait for their clients alone."""
        if self._incomplete < self._limits.sockets:
            return None
        return Overloaded(f"{self._incomplete} requests are still being sent; come back.")

    def _too_many(self, scope: Scope) -> _TooManyRequests | None:
        if self._requests < self._limits.requests or scope["path"].startswith(_HEALTH_PREFIX):
            return None
        return _TooManyRequests(
            f"{self._requests} requests are going on here (spec.api.max_requests); come back."
        )


def head_fault(scope: Scope) -> AstromeshError | None:
    """What is wrong with the size of a request's head, if anything."""
    target = len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b""))
    if target > MAX_TARGET_BYTES:
        return PayloadTooLarge(f"Path and query have {target} bytes; {MAX_TARGET_BYTES} are taken.")
    size = sum(map(len, chain.from_iterable(scope["headers"])))
    if size > MAX_HEADER_BYTES:
        return PayloadTooLarge(f"The headers have {size} bytes; {MAX_HEADER_BYTES} are taken.")
    return None


def _wrap_send(scope: Scope, send: Send) -> Send:
    """Puts the headers on the answer; what is audited is noted before its answer goes out."""
    state = scope.setdefault("state", {})

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            state["answering"] = True
            if "audit" in state:
                await record_response(state, message["status"])
            message["headers"] = add_security_headers(message.get("headers", ()))
        elif len(message.get("body", b"")) > CHUNK_BYTES:
            await _send_in_chunks(message, send)
            return
        await send(message)

    return sent


async def _send_in_chunks(message: Message, send: Send) -> None:
    """A long body: written at once, it would keep every other run waiting."""
    body = memoryview(message["body"])
    last = (len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
    for at in range(0, last, CHUNK_BYTES):
        await send({**message, "body": bytes(body[at : at + CHUNK_BYTES]), "more_body": True})
        await asyncio.sleep(0)
    await send({**message, "body": bytes(body[last:])})
