"""Bounded request bodies and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astromesh.api.asked import RunBody
from astromesh.api.errors import answer, invalid
from astromesh.api.headers import headers_of
from astromesh.errors import AstromeshError, InvalidInput, PayloadTooLarge
from astromesh.runtime.records import RunRequest
from astromesh.telemetry.traceparent import read_traceparent

T = TypeVar("T")
_RUN: TypeAdapter[RunBody] = TypeAdapter(RunBody)

#: levels of lists and objects in a request; we put it into others and write it to stores
MOST_DEPTH, _WRITABLE = 64, 254
#: of a declared length; int() of endless digits takes for ever
_DIGITS = 18
#: where in a request's state its body is
_BODY = "body"
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
#: what orjson says of bytes that are no text; its place is always the first
_NOT_UTF_8 = "not valid UTF-8"
TOO_DEEP = f"The JSON has more than {MOST_DEPTH} levels of lists and objects within each other."


class BodyLimit:
    """ASGI middleware: refuses bodies that are too large (413) or nest too deep (422), before any route.

    A body is taken in whole: every route reads it whole, and what was taken in can be looked at.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = _declared(scope) if scope["type"] == "http" else "0"
        if declared == "0":
            await self._app(scope, receive, send)
            return
        body = None if declared and self._beyond(declared) else await self._taken_in(receive)
        if body is None:
            await answer(self._too_large())(scope, receive, send)
        elif isinstance(body, bytes) and nests_too_deep(body):
            await answer(InvalidInput(TOO_DEEP))(scope, receive, send)
        else:
            scope.setdefault("state", {})[_BODY] = body
            await self._app(scope, _again(body, receive), send)

    def _beyond(self, declared: str) -> bool:
        return not declared.isdigit() or len(declared) > _DIGITS or int(declared) > self._most

    async def _taken_in(self, receive: Receive) -> bytes | Message | None:
        """The body; None where it is too large; the message of its going where the client has gone."""
        pieces: list[bytes] = []
        seen = 0
        while (message := await receive())["type"] == "http.request":
            pieces.append(message.get("body", b""))
            seen += len(pieces[-1])
            if seen > self._most:
                return None
            if not message.get("more_body"):
                return b"".join(pieces)
        return message

    def _too_large(self) -> AstromeshError:
        return PayloadTooLarge(f"The body is larger than {self._most} bytes (spec.api.max_body_bytes).")


def _declared(scope: Scope) -> str:
    """`content-length`, empty for a chunked body, `0` where there is none."""
    headers = headers_of(scope)
    unknown = scope["method"] in _WITH_BODY or "transfer-encoding" in headers
    return headers.get("content-length", "" if unknown else "0")


def _again(body: bytes | Message, receive: Receive) -> Receive:
    """Says what was taken in, then whatever comes."""
    said = False

    async def again() -> Message:
        nonlocal said
        if said:
            return await receive()
        said = True
        return {"type": "http.request", "body": body} if isinstance(body, bytes) else body

    return again


def nests_too_deep(raw: bytes) -> bool:
    """Whether JSON has lists and objects within each other beyond `MOST_DEPTH`; False for what is no JSON.

    orjson writes 254 levels. Around so many of ours as are left it refuses what is deeper, at C's speed.
    """
    if raw.count(b"[") + raw.count(b"{") <= MOST_DEPTH:
        return False
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return "depth limit" in str(error)
    for _ in range(_WRITABLE - MOST_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:  # what orjson has read it can write, unless it is too deep
        return True
    return False


async def body_of(request: Request) -> bytes:
    """The body, as it was taken in."""
    body = request.scope.get("state", {}).get(_BODY)
    return body if isinstance(body, bytes) else await request.body()


async def read(request: Request, adapter: TypeAdapter[T]) -> T:
    """The validated body. Raises: InvalidInput: which field is wrong and how."""
    raw = await body_of(request)
    try:
        return adapter.validate_python(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        what = "not UTF-8, as JSON must be" if _NOT_UTF_8 in str(error) else f"not JSON: {error}"
        raise InvalidInput(f"The body is {what}.") from error
    except ValidationError as error:
        raise InvalidInput(invalid(error.errors(include_url=False, include_input=False))) from error


async def run_asked(request: Request) -> RunRequest:
    """What the body of a run asks for. Raises: InvalidInput."""
    body = await read(request, _RUN)
    cause = read_traceparent(headers_of(request.scope).get("traceparent"))
    return RunRequest(body.query, body.session_id, body.context, body.metadata, caused_by=cause)


class ClientGone(Exception):
    """The client closed the connection before its answer was there."""


#: seconds after which a request starts to look whether its client is still there
_PATIENCE = 0.1


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`, cancelling it when the client goes away. Fast work never pays for the watching.

    Raises:
        ClientGone: instead of the cancellation that it caused itself.
    """
    loop = asyncio.get_running_loop()
    current: asyncio.Task[Any] | None = asyncio.current_task()
    assert current is not None
    watch: list[asyncio.Task[None]] = []
    gone = False

    async def look() -> None:
        nonlocal gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        current.cancel()

    timer = loop.call_later(_PATIENCE, lambda: watch.append(loop.create_task(look())))
    try:
        return await work
    except asyncio.CancelledError:
        if gone and current.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        timer.cancel()
        for task in watch:
            task.cancel()
