"""`sliding_window`: the last N turns (document 001)."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.stores import Recalled
from astromesh.memory.strategies.window import Uncompressed, from_question, messages
from astromesh.types import Message


class SlidingWindowOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_turns: int = Field(
        20, ge=2, le=1000, description="Newest turns that a run sees; question and answer are a turn each."
    )


class SlidingWindow(Uncompressed):
    """Args: max_turns: newest turns, at least 2 (a question and its answer)."""

    Options: ClassVar[type[BaseModel]] = SlidingWindowOptions

    def __init__(self, max_turns: int = 20) -> None:
        self.limit = max_turns

    @classmethod
    async def open(cls, options: SlidingWindowOptions, deps: Deps) -> Self:
        return cls(options.max_turns)

    def select(self, recalled: Recalled) -> tuple[Message, ...]:
        return messages(from_question(recalled.turns[-self.limit :]))
