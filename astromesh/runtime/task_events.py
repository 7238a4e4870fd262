"""Events of a Task for whoever follows it: told from its records, live ones and those of other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from astromesh.abc.events import EventSink
from astromesh.errors import StoreError
from astromesh.types import JsonObject
from astromesh.workflow.retold import Retold

#: seconds between two looks at a Task that another process works on
_LOOK = 0.2

#: records behind the n first ones; what is set with the next ones, None where nobody here works on it
Source = Callable[[int], Awaitable[tuple[Sequence[JsonObject], asyncio.Event | None]]]


class TaskFollower:
    """Sends the events behind `after`, then what comes, until the Task has ended.

    Args:
        sink: closed behind the last event.
    """

    def __init__(
        self, source: Source, retold: Retold, after: int, sink: EventSink, end: Callable[[], None]
    ) -> None:
        self._source, self._retold, self._after, self._sink, self._end = source, retold, after, sink, end
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Callable[[], None]:
        """Answers what ends the following."""
        self._task = asyncio.create_task(self._follow())
        return self._task.cancel  # type: ignore[return-value]

    async def _follow(self) -> None:
        seen = 0
        try:
            while True:
                records, news = await self._read(seen)
                seen += len(records)
                for event in self._retold.tell(records):
                    if event.seq > self._after:
                        self._sink.send(event)
                if records and records[-1]["type"] == "end":
                    return
                await _soon(news)
        finally:
            self._end()

    async def _read(self, seen: int) -> tuple[Sequence[JsonObject], asyncio.Event | None]:
        try:
            return await self._source(seen)
        except StoreError:  # it may be there again
            return (), None


async def _soon(news: asyncio.Event | None) -> None:
    if news is not None:
        await news.wait()
        return
    await asyncio.sleep(_LOOK)
