"""Group commit for PostgreSQL: concurrent calls of one kind become one call.

A database answers fifty rows in nearly the time of one, and a round trip costs more processor time than the
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

    If a batch is refused, each call is repeated alone, so that only the faulty ones fail.

    Args:
        work: executes all calls of a batch or none; returns one result per call, in order.
        most: the maximum number of calls in a batch.
    """

    def __init__(
        self, work: Callable[[Sequence[A]], Coroutine[Any, Any, Sequence[R]]], most: int = MAX_BATCH
    ) -> None:
        self._work, self._most = work, most
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, argument: A) -> R:
        """Returns the result of one call. Raises what `work` raises."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, answer))
        if self._worker is None:
            self._worker = asyncio.create_task(self._go())
        return await answer

    async def _go(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._settle(batch)
        finally:
            self._worker = None

    async def _settle(self, batch: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        given = [argument for argument, _ in batch]
        working = asyncio.ensure_future(self._work(given))
        await asyncio.wait([working])
        error = asyncio.CancelledError() if working.cancelled() else working.exception()
        if error is None:
            for (_, answer), result in zip(batch, working.result(), strict=True):
                if not answer.done():
                    answer.set_result(result)
        elif len(batch) > 1 and not isinstance(error, (StoreUnavailable, asyncio.CancelledError)):
            for one in batch:
                await self._settle([one])
        else:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
