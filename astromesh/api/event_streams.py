"""Event streams to clients: a bounded buffer per reader, JSON encoding, server-sent events.

A run never waits for a reader. The format of a stream is WHATWG HTML, section 9.2.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from astromesh.api.errors import error_response, public_failure
from astromesh.errors import AstromeshError
from astromesh.telemetry.events import MODEL_DELTA, PRIVATE_EVENTS, TERMINAL_EVENTS
from astromesh.telemetry.run_log import EVENT_OVERHEAD, text_length
from astromesh.types import Event

#: events that wait one by one; beyond that the buffer joins deltas of one step
MAX_SEPARATE_EVENTS = 512
#: characters of a joined delta that takes another one: each join copies the whole text
_MAX_MERGED_CHARS = 16 * 1024
#: estimated bytes that wait or are on their way; beyond that the buffer drops events, which the gap in `seq`
#: shows
MAX_PENDING_BYTES = 1 << 20
#: bytes that the socket's writer gets at a time: it copies them, and a reader may never take them
_PIECE = 64 * 1024


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON.

    What JSON cannot express becomes text, and half a surrogate pair becomes an escape.
    """
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


class EventBuffer:
    """A listener with a bounded queue for one reader. It never drops the last event, which has the answer.

    Args:
        max_separate: how many events wait before the buffer joins deltas.
        max_bytes: how many bytes wait, or have been taken and not yet sent, before the buffer drops events.
        close_at_end: closes after the last event of a run.

    `pending_bytes` counts the bytes that wait, `dropped` the lost events, `dropped_by_all` those of every
    buffer of this process.
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
        self._max_separate, self._max_bytes = max(max_separate, 1), max_bytes
        self._close_at_end = close_at_end
        # a future only while a reader waits: most sockets are idle
        self._ready: asyncio.Future[None] | None = None
        self._closed = False
        self.pending_bytes = 0
        #: waited for by whoever can wait for room
        self._space: asyncio.Future[None] | None = None
        #: of the events that were taken last: who takes more has sent them
        self._taken_bytes = 0
        self.dropped = 0

    def send(self, event: Event) -> None:
        if self._closed or event.type in PRIVATE_EVENTS:
            return
        last = event.type in TERMINAL_EVENTS
        is_delta = event.type == MODEL_DELTA  # by far the most frequent event: its length is taken in place
        size = EVENT_OVERHEAD + (len(event.data["content"]) if is_delta else text_length(event))
        if self.pending_bytes + self._taken_bytes + size > self._max_bytes and not last:
            self.dropped += 1
            EventBuffer.dropped_by_all += 1
            return
        self.pending_bytes += size
        if len(self._pending) < self._max_separate or not self._merge(event):
            self._pending.append(event)
        if last and self._close_at_end:
            self._closed = True
        if self._ready is not None:
            self._wake()

    @property
    def has_room(self) -> bool:
        """Whether half of the buffer is free, or nobody reads it any more."""
        return self._closed or self.pending_bytes + self._taken_bytes <= self._max_bytes // 2

    async def room(self) -> None:
        """Returns once it has room: for a sender whose events can wait, so that none is dropped."""
        while not self.has_room:
            self._space = asyncio.get_running_loop().create_future()
            await self._space

    def close(self) -> None:
        """Accepts no more events. The reader still gets those that wait."""
        self._closed = True
        self._wake()
        self._free()

    def discard(self) -> None:
        """Closes the buffer and drops what waits, because nobody reads it."""
        self._pending = []
        self.close()

    async def take(self) -> Sequence[Event]:
        """Returns everything that waits, at least one event; nothing once closed and drained."""
        self._taken_bytes = 0
        self._free()
        while not self._pending and not self._closed:
            self._ready = asyncio.get_running_loop().create_future()
            await self._ready
        events, self._pending = self._pending, []
        self._taken_bytes, self.pending_bytes = self.pending_bytes, 0
        return events

    def _free(self) -> None:
        space, self._space = self._space, None
        if space is not None and not space.done():
            space.set_result(None)

    def _wake(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def _merge(self, event: Event) -> bool:
        """Joins a delta to the one before it, where both belong to one step."""
        before = self._pending[-1]
        if event.type != MODEL_DELTA or not _continues(before, event):
            return False
        if len(before.data["content"]) > _MAX_MERGED_CHARS:
            return False
        # a new event, because other listeners share the old one
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


def encode_sse(event: Event) -> bytes:
    """Returns one event as a server-sent event: id, event, data."""
    data = public_failure(event.data) if event.type == "run.failed" else event.data
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), json_bytes(data))


class EventStreamResponse(Response):
    """Sends the events of a buffer as server-sent events until the buffer closes or the client disconnects.

    Args:
        on_close: called when the reader has left, whatever the reason.
        encoder: an event to bytes, possibly none.
        first: what leaves before the first event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        buffer: EventBuffer,
        on_close: Callable[[], None] | None = None,
        *,
        encoder: Callable[[Event], bytes] = encode_sse,
        first: bytes = b"",
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._buffer = buffer
        self._on_close = on_close
        self._encode = encoder
        #: what is encoded before the head leaves
        self._first_body = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(self._discard_on_disconnect(receive))
        try:
            await self._send_events(watch, scope, receive, send)
        except OSError:
            pass  # the socket closed: the same as a disconnect
        finally:
            if watch.done() and not watch.cancelled():  # the client left before the end
                freed_memory.return_soon()
            watch.cancel()
            self._buffer.discard()
            if self._on_close is not None:
                self._on_close()

    async def _send_events(
        self, watch: asyncio.Future[None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send_body(self._first_body, send)
        while (events := await self._buffer.take()) and not watch.done():
            body, events = b"".join(map(self._encode, events)), ()
            await self._send_body(body, send)
        if not watch.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_body(self, body: bytes, send: Send) -> None:
        for start in range(0, len(body), _PIECE):
            if start:
                await asyncio.sleep(0)  # other runs have their turn between two pieces
            piece = body[start : start + _PIECE] if len(body) > _PIECE else body
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _discard_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._buffer.discard()


class DelegatedResponse(Response):
    """A response that another ASGI application sends."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def stream_or_complete(buffer: EventBuffer, leave: Callable[[], None] | None, last_event_id: int) -> Response:
    """Returns the stream for a reader, or 204 where it has every event, so that an `EventSource` stops.

    Args:
        leave: ends the reading; None: everything is in the buffer, and nothing more comes.
        last_event_id: the last event that the reader has; 0: none.
    """
    if leave is None:
        if last_event_id and not buffer.pending_bytes:
            return Response(status_code=204)
        buffer.close()
    return EventStreamResponse(buffer, leave)


class Hold(NamedTuple):
    """Lets the head of a stream wait, so that a run that fails early is answered with a status.

    Args:
        has_output: whether the encoder has made anything that a client shows.
        expire: returns when the head must leave.
    """

    has_output: Callable[[], bool]
    expire: Callable[[], Awaitable[None]]


class RunStreamResponse(EventStreamResponse):
    """Runs something and sends its events. It cancels the run when the client disconnects.

    Args:
        run: starts the run with a buffer among its sinks; its errors arrive as events.
        keep_running: a disconnect does not cancel the run (`on_disconnect: continue`).
        hold: None: the head leaves at once.
    """

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        *,
        keep_running: bool = False,
        encoder: Callable[[Event], bytes] = encode_sse,
        hold: Hold | None = None,
    ) -> None:
        super().__init__(EventBuffer(), encoder=encoder)
        self._run = run
        self._keep_running = keep_running
        self._hold = hold
        self._error: AstromeshError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self._run_to_end())
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._leave(task)

    async def _send_events(
        self, watch: asyncio.Future[None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        if self._hold is not None:
            self._first_body = await self._wait_for_output(self._hold)
            if self._error is not None and not self._hold.has_output():
                await error_response(self._error, scope)(scope, receive, send)
                return
        await super()._send_events(watch, scope, receive, send)

    async def _wait_for_output(self, hold: Hold) -> bytes:
        """Returns what is encoded when the first output is there, the run has ended, or the time is up."""
        expiry = asyncio.ensure_future(hold.expire())
        body = b""
        try:
            while not hold.has_output():
                taking = asyncio.ensure_future(self._buffer.take())
                await asyncio.wait({taking, expiry}, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    break
                if not (events := taking.result()):
                    break
                body += b"".join(map(self._encode, events))
        finally:
            expiry.cancel()
        return body

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
            await self._run(sinks=(self._buffer,))
        except AstromeshError as error:
            self._error = error
            if not error.run_id:  # the runtime refused the run before its first event
                self._buffer.send(Event("", 0, 0.0, "run.failed", {"code": error.code, "detail": str(error)}))
        finally:
            self._buffer.close()
            if self._buffer.pending_bytes > _PIECE:  # the client reads more slowly than the model has written
                freed_memory.return_soon()


# -- freed memory ------------------------------------------------------------------------------------------


#: seconds until memory is returned: other runs end, and other readers leave, meanwhile
_PAUSE_SECONDS = 5.0


def _trim_of_c_library() -> Callable[[int], int] | None:
    """Returns malloc_trim(3), which a C library other than glibc may not have."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


class FreedMemory:
    """The freed memory of this process: of long runs whose readers do not read, and of those who leave.

    What they have held is thousands of small texts. The C library keeps the pages that they leave until it is
    asked.
    """

    def __init__(self, trim: Callable[[int], int] | None) -> None:
        self._trim, self._is_due = trim, False

    def return_soon(self) -> None:
        """Returns it in a moment, in a thread: the call takes milliseconds."""
        if self._trim is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._return)

    def _return(self) -> None:
        self._is_due = False
        if self._trim is not None:
            asyncio.get_running_loop().run_in_executor(None, self._trim, 0)


freed_memory = FreedMemory(_trim_of_c_library())
