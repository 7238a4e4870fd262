"""The strategy seam: which part of a session a run sees (document 001, step 4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from astromesh.abc.provider import ModelPort
from astromesh.abc.stores import Recalled, Summary
from astromesh.types import Message, Turn

#: the turns with seq > `after`, oldest first, at most `limit`
Pager = Callable[[int, int], Awaitable[tuple[Turn, ...]]]


class MemoryStrategy(Protocol):
    """Chooses; it neither reads nor writes the store by itself. A turn is one stored message."""

    #: the newest turns it wants to see
    limit: int

    def measure(self, content: str, reported: int = 0) -> int:
        """Size of a text in tokens, to be kept with its turn; 0 from a strategy that does not count.

        Args:
            reported: what a model said this text has, 0 where unknown.
        """

    def select(self, recalled: Recalled) -> tuple[Message, ...]:
        """The history for the prompt. Never starts with an answer whose question is not there."""

    def due(self, recalled: Recalled) -> bool:
        """Whether `compact` has something to do."""

    async def compact(self, recalled: Recalled, page: Pager, model: ModelPort) -> Summary:
        """The summary that takes the place of the recalled one.

        Raises:
            AstromeshError: the model or the store failed; nothing is lost, the next run tries again.
        """
