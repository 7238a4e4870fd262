"""Group commit for PostgreSQL: concurrent calls of one kind become one call.

A database returns fifty rows in nearly the time of one, and a round trip costs more processor time than the
row in it. A single call starts at once. Under load, the calls that arrive meanwhile form the next batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from astromesh.errors import StoreUnavailable

A = TypeVar("A")
R = TypeVar("R")

#: calls in one batch
MAX_BATCH = 16


class GroupCommit(Generic[A, R]):
    """A callable that batches its calls. Cancelling a caller does not stop its call.

    If a batch is rejected, each call is repeated alone, so that only the faulty ones fail.

    Args:
        work: executes all calls of a batch or none; returns one result per call, in order.
        max_batch: maximum number of calls in a batch.
    """

    def __init__(
        self, work: Callable[[Sequence[A]], Coroutine[Any, Any, Sequence[R]]], max_batch: int = MAX_BATCH
    ) -> None:
        self._work, self._max_batch = work, max_batch
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, argument: A) -> R:
        """Returns the result of one call. Raises what `work` raises."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, result))
        if self._worker is None:
            self._worker = asyncio.create_task(self._drain())
        return await result

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
                await self._settle(batch)
        finally:
            self._worker = None

    async def _settle(self, batch: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        arguments = [argument for argument, _ in batch]
        working = asyncio.ensure_future(self._work(arguments))
        await asyncio.wait([working])
        error = asyncio.CancelledError() if working.cancelled() else working.exception()
        if error is None:
            for (_, future), result in zip(batch, working.result(), strict=True):
                if not future.done():
                    future.set_result(result)
        elif len(batch) > 1 and not isinstance(error, (StoreUnavailable, asyncio.CancelledError)):
            for call in batch:
                await self._settle([call])
        else:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
