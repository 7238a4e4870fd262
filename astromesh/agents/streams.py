"""The stream of one run: its events, its text, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Generic, Self

from astromesh.agents.results import OutputT, Result
from astromesh.events import typed
from astromesh.graph.calls import ASSISTANT
from astromesh.telemetry.events import MODEL_DELTA, EventSink
from astromesh.types import Event

#: starts a run with these listeners
StartRun = Callable[[Iterable[EventSink]], Awaitable[Result[OutputT]]]


class _Queue:
    """Puts events into a queue, deltas too; None ends it."""

    wants_deltas = True

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()

    def send(self, event: Event) -> None:
        self.events.put_nowait(event)


class RunStream(Generic[OutputT]):
    """A run whose events arrive while it works: `agent.stream(…)`.

    Use it as `async with`, which cancels the run when the block is left before its end, or iterate over it.
    It can be read once: as events, or as `text()`.
    """

    def __init__(self, start: StartRun[OutputT]) -> None:
        self._start = start
        self._queue = _Queue()
        self._task: asyncio.Future[Result[OutputT]] | None = None
        self._is_left = self._is_read = False

    @property
    def result(self) -> Result[OutputT]:
        """The result of the run, after the last event.

        Raises:
            RuntimeError: The run has not ended yet.
            AstromeshError: The run failed, and `on_error` is "raise".
        """
        task = self._task
        if task is None or not task.done() or task.cancelled():
            raise RuntimeError(
                "The run has not ended: read the stream to its end before you ask for its result."
            )
        return task.result()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def text(self) -> AsyncGenerator[str, None]:
        """Yields the pieces of the answer as they arrive, and before what the model says beside tool calls.

        Raises:
            AstromeshError: The run failed, and `on_error` is "raise".
        """
        async for event in self._events():
            if event.type == MODEL_DELTA and event.data["role"] == ASSISTANT:
                yield event.data["content"]

    async def close(self) -> None:
        """Cancels the run if it has not ended."""
        task = self._task
        if task is not None and not task.done():
            if not self._is_left:  # a second cancel would interrupt the clean-up of the first one
                self._is_left = True
                task.cancel()
            await asyncio.wait([task])

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if self._task is not None and not self._task.cancelled():
            self._task.exception()  # it is known to the reader, or the reader has left

    def _begin(self) -> asyncio.Future[Result[OutputT]]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._start([self._queue]))
            self._task.add_done_callback(lambda _: self._queue.events.put_nowait(None))
        return self._task

    async def _events(self) -> AsyncGenerator[Event, None]:
        if self._is_read:
            raise RuntimeError("A stream can be read once, as events or as text. Start another one.")
        self._is_read = True
        task = self._begin()
        try:
            while (event := await self._queue.events.get()) is not None:
                yield typed(event)
            await task
        finally:
            await self.close()
