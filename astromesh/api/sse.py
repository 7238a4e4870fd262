"""Server-sent events (WHATWG HTML, section 9.2): a run's events to one HTTP response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astromesh.api.encoding import encoded
from astromesh.api.errors import public_failure
from astromesh.api.outbox import Outbox
from astromesh.errors import AstromeshError
from astromesh.types import Event


def encode(event: Event) -> bytes:
    """One event as SSE bytes: id, event, data."""
    data = public_failure(event.data) if event.type == "run.failed" else event.data
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), encoded(data))


class EventStreamResponse(Response):
    """What an outbox gets, as server-sent events, until it is closed or the client has gone.

    Args:
        outbox: what is sent.
        left: called once nobody reads any more, however that came about.
        encoder: an event to bytes, possibly none.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        outbox: Outbox,
        left: Callable[[], None] | None = None,
        *,
        encoder: Callable[[Event], bytes] = encode,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._outbox = outbox
        self._left = left
        self._encode = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(_gone(receive))
        watch.add_done_callback(lambda _: self._outbox.abandon())
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            while (events := await self._outbox.take()) and not watch.done():
                body = b"".join([self._encode(event) for event in events])
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            if not watch.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # the socket closed under us: the same as a disconnect
        finally:
            watch.cancel()
            self._outbox.abandon()
            if self._left is not None:
                self._left()


class RunStreamResponse(EventStreamResponse):
    """Runs something while sending its events. When the client goes away the run is cancelled.

    Args:
        outbox: listens to the run.
        run: the run; its errors have been sent as events already.
        keep_running: the client's leaving does not cancel (`on_disconnect: continue`).
    """

    def __init__(
        self,
        outbox: Outbox,
        run: Callable[[], Awaitable[Any]],
        *,
        keep_running: bool = False,
        encoder: Callable[[Event], bytes] = encode,
    ) -> None:
        super().__init__(outbox, encoder=encoder)
        self._run = run
        self._keep_running = keep_running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self._to_the_end())
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._leave(task)

    async def _leave(self, task: asyncio.Future[None]) -> None:
        if self._keep_running:
            await asyncio.shield(task)
            return
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _to_the_end(self) -> None:
        try:
            await self._run()
        except AstromeshError as error:
            if not error.run_id:  # refused before its first event
                self._outbox.send(Event("", 0, 0.0, "run.failed", {"code": error.code, "detail": str(error)}))
        finally:
            self._outbox.close()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
