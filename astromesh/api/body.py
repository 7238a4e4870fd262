"""Bounded request bodies and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import orjson
from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astromesh.api.errors import answer, invalid
from astromesh.errors import AstromeshError, InvalidInput, PayloadTooLarge

T = TypeVar("T")


class BodyLimit:
    """ASGI middleware: a body over the limit is refused, by its declared length or while it comes (413)."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == b"content-length":
                if value.isdigit() and int(value) <= self._most:
                    await self._app(scope, receive, send)
                else:
                    await answer(self._too_large())(scope, receive, send)
                return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> AstromeshError:
        return PayloadTooLarge(f"The body is larger than {self._most} bytes (spec.api.max_body_bytes).")


async def read(request: Request, adapter: TypeAdapter[T]) -> T:
    """The validated body. Raises: InvalidInput: which field is wrong and how."""
    raw = await request.body()
    try:
        return adapter.validate_python(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The body is not JSON: {error}.") from error
    except ValidationError as error:
        raise InvalidInput(invalid(error.errors(include_url=False, include_input=False))) from error


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
