"""What the strategies share: turns become messages, and a window starts with a question."""

from __future__ import annotations

from collections.abc import Sequence

from astromesh.abc.memory import Pager
from astromesh.abc.provider import ModelPort
from astromesh.abc.stores import Recalled, Summary
from astromesh.types import Message, Turn


def from_question(turns: Sequence[Turn]) -> Sequence[Turn]:
    """Without the answers at the start whose question is not there."""
    for start, turn in enumerate(turns):
        if turn.role == "user":
            return turns[start:] if start else turns
    return ()


def messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    return tuple([Message(turn.role, turn.content) for turn in turns])


class Uncompressed:
    """For strategies that keep turns as they are and count nothing."""

    def measure(self, content: str, reported: int = 0) -> int:
        return 0

    def due(self, recalled: Recalled) -> bool:
        return False

    async def compact(self, recalled: Recalled, page: Pager, model: ModelPort) -> Summary:
        raise NotImplementedError("This strategy compresses nothing: due() is never true.")
