"""`token_budget`: as many recent turns as fit (document 001).

Sizes are estimated without a tokenizer (`astromesh.tokens`), kept with each turn, and corrected by what the
model reports for its answers.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.stores import Recalled
from astromesh.memory.strategies.window import Uncompressed, from_question, messages
from astromesh.tokens import MESSAGE_OVERHEAD, Correction, estimate
from astromesh.types import Message, Turn

#: turns looked at: all that fit, unless they are shorter than this on average
_SHORTEST, _MOST_TURNS = 10, 400
#: answers too short to learn from
_LEAST_TOKENS = 16


class TokenBudgetOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_tokens: int = Field(2000, ge=16, description="Tokens of history that a run sees, whole turns only.")


class TokenBudget(Uncompressed):
    """Args: max_tokens: most tokens of history; turns are taken whole, from the newest."""

    Options: ClassVar[type[BaseModel]] = TokenBudgetOptions

    def __init__(self, max_tokens: int = 2000) -> None:
        self._max = max_tokens
        self._correction = Correction()
        self.limit = min(max_tokens // _SHORTEST + 1, _MOST_TURNS)

    @classmethod
    async def open(cls, options: TokenBudgetOptions, deps: Deps) -> Self:
        return cls(options.max_tokens)

    def measure(self, content: str, reported: int = 0) -> int:
        size = estimate(content)
        if reported <= 0:
            return self._correction.apply(size)
        if reported >= _LEAST_TOKENS:
            self._correction.learn(size, reported)
        return reported

    def select(self, recalled: Recalled) -> tuple[Message, ...]:
        left = self._max
        turns = recalled.turns
        start = len(turns)
        while start and (left := left - self._size(turns[start - 1])) >= 0:
            start -= 1
        return messages(from_question(turns[start:]))

    def _size(self, turn: Turn) -> int:
        return MESSAGE_OVERHEAD + (turn.tokens or self.measure(turn.content))
