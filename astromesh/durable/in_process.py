"""Dispatches segments inside one process.

The rows are in the database, and the claim of a segment decides which process executes it. The sweep of any
process of the same database dispatches again what waits too long, after a restart as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from astromesh.durable.base import RunRow, RunSegment, Wake, partition_of
from astromesh.plugins import Deps


class InProcessBackend:
    """A DurableBackend without a queue of its own on disk.

    Args:
        concurrency: maximum number of active segments. A session has one at a time, in order.
    """

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        concurrency: int = Field(64, ge=1, description="Maximum number of active runs.")

    name: ClassVar[str] = "in_process"
    places: ClassVar[bool] = False

    def __init__(self, concurrency: int = 64) -> None:
        self._max_active = concurrency
        self._work: RunSegment | None = None
        self._ready: list[tuple[int, int, str]] = []
        self._partitions: dict[str, deque[tuple[str, int, int]]] = {}
        self._known: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = count()
        self._open = True

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Self:
        return cls(options.concurrency)

    async def start(self, work: RunSegment, wake: Wake) -> None:
        self._work = work
        self._start_ready()

    async def dispatch(self, run: RunRow) -> None:
        if not self._open or (run.run_id, run.segment) in self._known:
            return
        self._known.add((run.run_id, run.segment))
        segments = self._partitions.setdefault(partition_of(run), deque())
        segments.append((run.run_id, run.segment, run.priority))
        if len(segments) == 1:
            self._make_ready(partition_of(run))
        self._start_ready()

    async def wake_at(self, name: str, at: float) -> None: ...

    async def ping(self) -> None: ...

    async def drain(self) -> None:
        self._open = False

    async def close(self) -> None:
        self._open = False
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _make_ready(self, partition: str) -> None:
        heappush(self._ready, (self._partitions[partition][0][2], next(self._order), partition))

    def _start_ready(self) -> None:
        while self._open and self._work and self._ready and len(self._tasks) < self._max_active:
            partition = heappop(self._ready)[2]
            task = asyncio.create_task(self._one(partition, self._work))
            self._tasks.add(task)

    async def _one(self, partition: str, work: RunSegment) -> None:
        segments = self._partitions[partition]
        run_id, segment, _ = segments[0]
        try:
            await work(run_id, segment)
        finally:
            segments.popleft()
            self._known.discard((run_id, segment))
            if segments:
                self._make_ready(partition)
            else:
                del self._partitions[partition]
            task = asyncio.current_task()
            if task is not None:
                self._tasks.discard(task)
            self._start_ready()
