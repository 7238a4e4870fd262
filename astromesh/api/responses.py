"""Event streams to clients: a bounded buffer per reader, JSON encoding, server-sent events.

A run never waits for a reader (reliability.md R11). The stream format is WHATWG HTML, section 9.2.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astromesh.api.errors import public_failure
from astromesh.errors import AstromeshError
from astromesh.telemetry.events import MODEL_DELTA, PRIVATE_EVENTS, TERMINAL_EVENTS
from astromesh.telemetry.run_log import EVENT_OVERHEAD, text_length
from astromesh.types import Event


def json_bytes(value: Any) -> bytes:
    """The value as JSON; what JSON has no form for becomes text, half a surrogate pair an escape."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:  # integers beyond 64 bits, half surrogate pairs, circles
        return _fallback_json(value)


def _fallback_json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=str).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(
            {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else str(value)
        ).encode()


# Between a run and a socket: events wait here when the reader is slow (reliability.md R11).

#: events that wait one by one; beyond it deltas of one step are joined
MAX_SEPARATE_EVENTS = 512


#: characters of a joined delta that takes another one: each time it is copied as a whole
_MAX_MERGED_CHARS = 16 * 1024


#: bytes that wait, estimated; beyond it events are dropped, which the gap in `seq` shows. As much again may
#: be on its way: what a writer took before its socket stood still
MAX_PENDING_BYTES = 1 << 20


class EventBuffer:
    """A listener with a bounded queue for one reader. The run never waits for it.

    The last event of a run is never dropped: it has the whole answer.

    Args:
        single: how many events may wait before deltas are joined.
        most: how many bytes may wait before events are dropped.
        ends: closes behind the last event of a run.

    `waiting` counts the bytes that wait, `dropped` the events that were lost, `dropped_by_all` those of every
    outbox of this process.
    """

    wants_deltas = True
    dropped_by_all: ClassVar[int] = 0

    def __init__(
        self,
        max_separate: int = MAX_SEPARATE_EVENTS,
        max_bytes: int = MAX_PENDING_BYTES,
        *,
        close_at_end: bool = False,
    ) -> None:
        self._pending: list[Event] = []
        self._max_separate, self._max_bytes, self._close_at_end = (
            max(max_separate, 1),
            max_bytes,
            close_at_end,
        )
        # A future only while somebody waits: idle sockets are many.
        self._ready: asyncio.Future[None] | None = None
        self._closed = False
        self.pending_bytes = 0
        self.dropped = 0

    def send(self, event: Event) -> None:
        last = event.type in TERMINAL_EVENTS
        if self._closed or event.type in PRIVATE_EVENTS or not self._fits(event, last):
            return
        if not self._merge(event):
            self._pending.append(event)
        if last and self._close_at_end:
            self._closed = True
        self._wake()

    def close(self) -> None:
        """No event comes any more; what waits may still be taken."""
        self._closed = True
        self._wake()

    def discard(self) -> None:
        """Nobody reads any more."""
        self._pending = []
        self.close()

    async def take(self) -> Sequence[Event]:
        """Everything that waits, at least one event; empty once closed and drained."""
        while not self._pending and not self._closed:
            self._ready = asyncio.get_running_loop().create_future()
            await self._ready
        taken, self._pending = self._pending, []
        self.pending_bytes = 0
        return taken

    def _wake(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def _fits(self, event: Event, last: bool) -> bool:
        size = EVENT_OVERHEAD + text_length(event)
        if self.pending_bytes + size > self._max_bytes and not last:
            self.dropped += 1
            EventBuffer.dropped_by_all += 1
            return False
        self.pending_bytes += size
        return True

    def _merge(self, event: Event) -> bool:
        """Joins a delta to the one before where many wait."""
        if len(self._pending) < self._max_separate or event.type != MODEL_DELTA:
            return False
        before = self._pending[-1]
        if not _continues(before, event) or len(before.data["content"]) > _MAX_MERGED_CHARS:
            return False
        # events are shared with other listeners: a new one, never a changed one
        data = {**event.data, "content": before.data["content"] + event.data["content"]}
        self._pending[-1] = Event(event.run_id, event.seq, event.ts, MODEL_DELTA, data)
        self.pending_bytes -= EVENT_OVERHEAD
        return True


def _continues(before: Event, delta: Event) -> bool:
    return (
        before.type == MODEL_DELTA
        and before.run_id == delta.run_id
        and all(before.data[k] == delta.data[k] for k in ("step", "role"))
    )


# Server-sent events (WHATWG HTML, section 9.2): a run's events to one HTTP response.


def encode_sse(event: Event) -> bytes:
    """One event as SSE bytes: id, event, data."""
    data = public_failure(event.data) if event.type == "run.failed" else event.data
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), json_bytes(data))


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
        buffer: EventBuffer,
        on_close: Callable[[], None] | None = None,
        *,
        encoder: Callable[[Event], bytes] = encode_sse,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._buffer = buffer
        self._on_close = on_close
        self._encode = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(_disconnected(receive))
        watch.add_done_callback(lambda _: self._buffer.discard())
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            while (events := await self._buffer.take()) and not watch.done():
                body = b"".join([self._encode(event) for event in events])
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            if not watch.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # the socket closed under us: the same as a disconnect
        finally:
            watch.cancel()
            self._buffer.discard()
            if self._on_close is not None:
                self._on_close()


class RunStreamResponse(EventStreamResponse):
    """Runs something while sending its events. When the client goes away the run is cancelled.

    Args:
        outbox: listens to the run.
        run: the run; its errors have been sent as events already.
        keep_running: the client's leaving does not cancel (`on_disconnect: continue`).
    """

    def __init__(
        self,
        buffer: EventBuffer,
        run: Callable[[], Awaitable[Any]],
        *,
        keep_running: bool = False,
        encoder: Callable[[Event], bytes] = encode_sse,
    ) -> None:
        super().__init__(buffer, encoder=encoder)
        self._run = run
        self._keep_running = keep_running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self._run_to_end())
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

    async def _run_to_end(self) -> None:
        try:
            await self._run()
        except AstromeshError as error:
            if not error.run_id:  # refused before its first event
                self._buffer.send(Event("", 0, 0.0, "run.failed", {"code": error.code, "detail": str(error)}))
        finally:
            self._buffer.close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
