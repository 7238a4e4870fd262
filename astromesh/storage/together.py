"""Calls that come while one of their kind is under way go together as the next one.

A database answers fifty rows hardly later than one, and a round trip costs a process more than the row in it.
A call that comes alone goes at once; under load a batch grows by itself, as large as what came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from astromesh.errors import StoreUnavailable

A = TypeVar("A")
R = TypeVar("R")

#: calls that go together at most
MOST = 16


class Together(Generic[A, R]):
    """`await together(argument)` is one call; a cancel of its caller does not stop it.

    Args:
        work: does all calls of a batch, or none of them; answers one result for each, in order.
        most: calls of one batch.

    Where a batch is refused, each call is tried alone, so that only those fail that are at fault.
    """

    def __init__(
        self, work: Callable[[Sequence[A]], Coroutine[Any, Any, Sequence[R]]], most: int = MOST
    ) -> None:
        self._work, self._most = work, most
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._going: asyncio.Task[None] | None = None

    async def __call__(self, argument: A) -> R:
        """Raises: what `work` raises."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, answer))
        if self._going is None:
            self._going = asyncio.create_task(self._go())
        return await answer

    async def _go(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._settle(batch)
        finally:
            self._going = None

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
