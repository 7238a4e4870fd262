"""Memory strategies: which part of a session a run sees.

`sliding_window` shows the last N turns, `token_budget` as many recent turns as fit, `summary` a summary of
older turns and the last few turns (document 001). A turn is one stored message. A window never starts with an
answer without its question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import ProviderUnavailable, SessionNotFound
from astromesh.memory.base import RecalledTurns, Summary, TurnPager, summary_prompt
from astromesh.plugins import Deps
from astromesh.providers.base import ModelPort
from astromesh.tokens import MESSAGE_OVERHEAD, TokenCorrection, estimate
from astromesh.types import CompletionRequest, Message, Turn


def drop_leading_answers(turns: Sequence[Turn]) -> Sequence[Turn]:
    """The turns from the first question on."""
    for start, turn in enumerate(turns):
        if turn.role == "user":
            return turns[start:] if start else turns
    return ()


def to_messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    return tuple([Message(turn.role, turn.content, name=turn.author) for turn in turns])


class VerbatimTurns:
    """Base class of strategies that do not summarize."""

    def measure(self, content: str, reported: int = 0) -> int:
        return 0

    def due(self, recalled: RecalledTurns) -> bool:
        return False

    async def compact(self, recalled: RecalledTurns, page: TurnPager, model: ModelPort) -> Summary:
        raise NotImplementedError("This strategy does not summarize: due() is always false.")


# -- sliding_window ------------------------------------------------------------------------------------------


class SlidingWindowOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_turns: int = Field(
        20,
        ge=2,
        le=1000,
        description="Newest turns that a run sees; question and answer count as one turn each.",
    )


class SlidingWindow(VerbatimTurns):
    """Args: max_turns: newest turns, at least 2 (a question and its answer)."""

    Options: ClassVar[type[BaseModel]] = SlidingWindowOptions

    def __init__(self, max_turns: int = 20) -> None:
        self.limit = max_turns

    @classmethod
    async def open(cls, options: SlidingWindowOptions, deps: Deps) -> Self:
        return cls(options.max_turns)

    def select(self, recalled: RecalledTurns) -> tuple[Message, ...]:
        return to_messages(drop_leading_answers(recalled.turns[-self.limit :]))


# -- summary -------------------------------------------------------------------------------------------------

#: batches of turns without a summary that a run still sees if summarizing fails
_MAX_PENDING_BATCHES = 4
#: turns summarized by one call, and characters of each turn, at most
_MAX_FOLDED_TURNS, _MAX_TURN_CHARACTERS = 100, 8000


class SummaryOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keep_turns: int = Field(6, ge=2, le=500, description="Newest turns that always stay verbatim.")
    every: int = Field(
        10,
        ge=2,
        le=_MAX_FOLDED_TURNS,
        description="Older turns that accumulate until they are summarized together.",
    )


class SummaryStrategy:
    """Summarizes turns that are older than the last few.

    Older turns accumulate until there are `every`; then one model call folds them into the stored summary, in
    parallel with the run. Each turn is summarized once. Until a summary is stored, and whenever summarizing
    fails, the run sees the turns themselves, up to `limit`.

    Args:
        keep_turns: newest turns that stay verbatim.
        every: older turns that one model call summarizes.
    """

    Options: ClassVar[type[BaseModel]] = SummaryOptions

    def __init__(self, keep_turns: int = 6, every: int = 10) -> None:
        self._keep = keep_turns
        self._every = every
        self.limit = keep_turns + _MAX_PENDING_BATCHES * every

    @classmethod
    async def open(cls, options: SummaryOptions, deps: Deps) -> Self:
        return cls(options.keep_turns, options.every)

    def measure(self, content: str, reported: int = 0) -> int:
        return 0

    def select(self, recalled: RecalledTurns) -> tuple[Message, ...]:
        summary = recalled.summary
        if summary is None:
            return to_messages(drop_leading_answers(recalled.turns))
        newer = [turn for turn in recalled.turns if turn.seq > summary.upto]
        return (summary.message(), *to_messages(drop_leading_answers(newer)))

    def due(self, recalled: RecalledTurns) -> bool:
        return recalled.last_seq - self._keep - _upto(recalled) >= self._every

    async def compact(self, recalled: RecalledTurns, page: TurnPager, model: ModelPort) -> Summary:
        upto = _upto(recalled)
        waiting = min(recalled.last_seq - self._keep - upto, _MAX_FOLDED_TURNS)
        turns = _whole_exchanges(await page(upto, waiting))
        if not turns:
            raise SessionNotFound("The session was erased before its summary was written.")
        earlier = recalled.summary.text if recalled.summary else ""
        result = await model.complete(
            CompletionRequest(summary_prompt(earlier, _transcript(turns)), role="summary")
        )
        text = result.content.strip()
        if not text:
            raise ProviderUnavailable("The model answered with an empty summary.", provider=result.provider)
        return Summary(text, turns[-1].seq)


def _whole_exchanges(turns: Sequence[Turn]) -> Sequence[Turn]:
    """The turns up to the last answer, so that the verbatim turns start with a question."""
    for end in range(len(turns), 0, -1):
        if turns[end - 1].role == "assistant":
            return turns[:end]
    return turns


def _transcript(turns: Sequence[Turn]) -> str:
    return "\n".join(f"{turn.role}: {turn.content[:_MAX_TURN_CHARACTERS]}" for turn in turns)


def _upto(recalled: RecalledTurns) -> int:
    return recalled.summary.upto if recalled.summary else 0


# -- token_budget --------------------------------------------------------------------------------------------

#: average tokens of a turn that the number of turns read assumes, and turns read at most
_MIN_TURN_TOKENS, _MAX_BUDGET_TURNS = 10, 400
#: tokens of an answer that is long enough to correct the estimate
_MIN_LEARNED_TOKENS = 16


class TokenBudgetOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_tokens: int = Field(2000, ge=16, description="Tokens of history that a run sees, whole turns only.")


class TokenBudget(VerbatimTurns):
    """As many of the newest turns as fit, each whole.

    Sizes are estimated without a tokenizer (`astromesh.tokens`), stored with each turn, and corrected by the
    tokens that models report for their answers.

    Args:
        max_tokens: tokens of history at most.
    """

    Options: ClassVar[type[BaseModel]] = TokenBudgetOptions

    def __init__(self, max_tokens: int = 2000) -> None:
        self._max_tokens = max_tokens
        self._correction = TokenCorrection()
        self.limit = min(max_tokens // _MIN_TURN_TOKENS + 1, _MAX_BUDGET_TURNS)

    @classmethod
    async def open(cls, options: TokenBudgetOptions, deps: Deps) -> Self:
        return cls(options.max_tokens)

    def measure(self, content: str, reported: int = 0) -> int:
        size = estimate(content)
        if reported <= 0:
            return self._correction.apply(size)
        if reported >= _MIN_LEARNED_TOKENS:
            self._correction.learn(size, reported)
        return reported

    def select(self, recalled: RecalledTurns) -> tuple[Message, ...]:
        left = self._max_tokens
        turns = recalled.turns
        start = len(turns)
        while start and (left := left - self._size(turns[start - 1])) >= 0:
            start -= 1
        return to_messages(drop_leading_answers(turns[start:]))

    def _size(self, turn: Turn) -> int:
        return MESSAGE_OVERHEAD + (turn.tokens or self.measure(turn.content))
