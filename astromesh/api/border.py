"""What every request passes first and every answer last: bounds, headers for browsers, the audit log.

Nothing here looks at who is calling. What is too large, or too much at once, is refused before anything is
done for it (reliability.md S8): early and cheap, so that what was admitted goes on undisturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from astromesh.api.audit import noted
from astromesh.api.errors import answer
from astromesh.api.turns import Turns
from astromesh.errors import AstromeshError, Overloaded, PayloadTooLarge, ShuttingDown

#: bytes of all header lines together, and of path and query
MOST_HEADERS, MOST_TARGET = 32_768, 8_192
#: orchestrators ask these; an answer that is refused would get a busy server killed
_ALWAYS = "/health/"
#: where a request's state says that its body is still coming
ARRIVING = "arriving"
#: bytes that are handed to a socket at once; who sends more lets others have their turn in between
PIECE = 256 * 1024
_STOPPED = "The server stopped before this was done; send the request again."
#: answers are data: no page may frame, sniff or keep them (OWASP, REST Security Cheat Sheet)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
#: only where the route does not say it itself
_DEFAULTS: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class Room(NamedTuple):
    """How much goes on at once in one process."""

    requests: int = 1_000
    sockets: int = 10_000


ROOM = Room()


class _NoRoom(Overloaded):
    """Raised to the border, too, where the last of a body comes and too many requests run by then."""


class Border:
    """ASGI middleware; the outermost one.

    Args:
        leaving: whether the server takes no more runs; what is cancelled then has run out of time.
        turns: who begins when.
    """

    def __init__(
        self,
        app: ASGIApp,
        room: Room,
        leaving: Callable[[], bool] = lambda: False,
        turns: Turns | None = None,
    ) -> None:
        self._app = app
        self._room = room
        self._leaving = leaving
        self._turns = turns or Turns()
        self._requests = self._sockets = self._arriving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = _protected(scope, send)
        arriving = scope["state"].get(ARRIVING)
        refused = too_large(scope) or (self._too_many_arrive() if arriving else self._too_many(scope))
        if refused is not None:
            await answer(refused)(scope, receive, sent)
            return
        if arriving:
            receive = self._counting(scope, receive)
            self._arriving += 1
        else:
            self._requests += 1
        try:
            if not scope["path"].startswith(_ALWAYS) and (turn := self._turns.take()) is not None:
                await turn
            await self._app(scope, receive, sent)
        except _NoRoom as full:
            await answer(full)(scope, receive, sent)
        except asyncio.CancelledError:
            if not self._cut_off():
                raise
            if not scope["state"].get("answering"):
                await answer(ShuttingDown(_STOPPED))(scope, receive, sent)
        finally:
            if scope["state"].get(ARRIVING):
                self._arriving -= 1
            else:
                self._requests -= 1

    def _counting(self, scope: Scope, receive: Receive) -> Receive:
        """A request runs from when its body is there; until then it takes no room of those that run."""

        async def counted() -> Message:
            message = await receive()
            if not message.get("more_body") and scope["state"].get(ARRIVING):
                if (refused := self._too_many(scope)) is not None:
                    raise refused
                scope["state"][ARRIVING] = False
                self._arriving -= 1
                self._requests += 1
            return message

        return counted

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = too_large(scope)
        if refused is None and self._sockets >= self._room.sockets:
            refused = Overloaded(f"{self._sockets} sockets are open here (spec.api.max_sockets); come back.")
        if refused is not None:
            await WebSocket(scope, receive, send).send_denial_response(answer(refused))
            return
        self._sockets += 1
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._cut_off():
                raise
        finally:
            self._sockets -= 1

    def _cut_off(self) -> bool:
        """Whether the server itself ends what is under way: an end in order, and no crash."""
        task = asyncio.current_task()
        return self._leaving() and task is not None and task.uncancel() == 0

    def _too_many_arrive(self) -> AstromeshError | None:
        """Halves of requests are bounded as sockets are: they wait for their clients alone."""
        if self._arriving < self._room.sockets:
            return None
        return Overloaded(f"{self._arriving} requests are still being sent; come back.")

    def _too_many(self, scope: Scope) -> _NoRoom | None:
        if self._requests < self._room.requests or scope["path"].startswith(_ALWAYS):
            return None
        return _NoRoom(f"{self._requests} requests are going on here (spec.api.max_requests); come back.")


def too_large(scope: Scope) -> AstromeshError | None:
    """What is wrong with the size of a request's head, if anything."""
    target = len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b""))
    if target > MOST_TARGET:
        return PayloadTooLarge(f"Path and query have {target} bytes; {MOST_TARGET} are taken.")
    size = sum(map(len, chain.from_iterable(scope["headers"])))
    if size > MOST_HEADERS:
        return PayloadTooLarge(f"The headers have {size} bytes; {MOST_HEADERS} are taken.")
    return None


def _protected(scope: Scope, send: Send) -> Send:
    """Puts the headers on the answer; what is audited is noted before its answer goes out."""
    state = scope.setdefault("state", {})

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            state["answering"] = True
            if "audit" in state:
                await noted(state, message["status"])
            message["headers"] = with_headers(message.get("headers", ()))
        elif len(message.get("body", b"")) > PIECE:
            await _in_pieces(message, send)
            return
        await send(message)

    return sent


async def _in_pieces(message: Message, send: Send) -> None:
    """A long body: written at once, it would keep every other run waiting."""
    body = memoryview(message["body"])
    last = (len(body) - 1) // PIECE * PIECE
    for at in range(0, last, PIECE):
        await send({**message, "body": bytes(body[at : at + PIECE]), "more_body": True})
        await asyncio.sleep(0)
    await send({**message, "body": bytes(body[last:])})


def with_headers(given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with those that protect it."""
    said = dict(given)
    return [*given, *_HEADERS, *[pair for pair in _DEFAULTS if pair[0] not in said]]
