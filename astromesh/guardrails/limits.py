"""`max_length` and `cost_limit`: limits on the length of a text and on the tokens of a turn.

`max_length` refuses a text that is too long (document 001, step 3). `cost_limit` ends an answer when its turn
has used up its tokens (step 10). A turn has the tokens of all its prompts and calls, and those of the answer.
If the tokens of the answer are not counted yet, as while it streams, `CHARACTERS_PER_TOKEN` characters count
as one token.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from astromesh.guardrails.base import Action, CheckContext, Rule, RuleStream, Verdict

CHARACTERS_PER_TOKEN = 4
#: characters before the bound in which a sentence end is searched; a stream holds back as many
LOOK_BACK = 400

_SENTENCE_END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n)")
_SPACE = re.compile(r"\s+")


class CostLimit(Rule):
    """Cuts or replaces an answer whose turn has used up its tokens."""

    type = "cost_limit"

    max_tokens_per_turn: int = Field(
        ge=1, description="Most tokens that one turn may use, over all its calls."
    )
    action: Literal["truncate", "block"] = Field(
        "truncate", description="Cut the answer at a sentence end, or replace it by the message."
    )
    message: str = Field(
        "I had to stop here: this turn has used up its tokens.",
        description="Text that replaces a blocked answer, or one that is empty once it is cut.",
    )

    @property
    def needs_whole_text(self) -> bool:
        return self.action == "block"

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        allowed = self.max_tokens_per_turn - context.tokens_used + context.output_tokens
        if context.output_tokens:
            bound = len(text) * allowed // context.output_tokens
        else:
            bound = allowed * CHARACTERS_PER_TOKEN
        if len(text) <= max(bound, 0):
            return None
        if self.action == "block":
            return Verdict("block", self.message)
        return Verdict("truncate", text[: cut_at(text, bound)] or self.message)

    def stream(self, context: CheckContext) -> RuleStream:
        allowed = self.max_tokens_per_turn - context.tokens_used
        return _CostStream(allowed * CHARACTERS_PER_TOKEN, self.message)


def cut_at(text: str, bound: int) -> int:
    """The position at which to cut a text: after a sentence, else after a word, else at `bound`."""
    if bound <= 0:
        return 0
    first = max(bound - LOOK_BACK, 0)
    for breaks in (_SENTENCE_END, _SPACE):
        ends = [found.end() for found in breaks.finditer(text[: bound + 1], first) if found.end() <= bound]
        if ends:
            return first + len(text[first : ends[-1]].rstrip())
    return bound


class _CostStream:
    """Releases all text until the bound is near, then holds back what the cut may remove."""

    action: Action = "truncate"

    def __init__(self, bound: int, message: str) -> None:
        self.count, self.done = 0, False
        self._bound, self._message = bound, message
        self._free = max(bound - LOOK_BACK, 0)
        self._released, self._held = 0, ""

    def feed(self, text: str) -> str:
        if self.done:
            return ""
        if not self._held and self._released + len(text) <= self._free:
            self._released += len(text)
            return text
        return self._hold(self._held + text)

    def _hold(self, held: str) -> str:
        loose = max(self._free - self._released, 0)
        free, self._held = held[:loose], held[loose:]
        self._released += len(free)
        if self._released + len(self._held) <= max(self._bound, 0):
            return free
        return free + self._cut()

    def _cut(self) -> str:
        self.count, self.done = 1, True
        rest = self._held[: cut_at(self._held, self._bound - self._released)]
        self._held = ""
        return rest if rest or self._released else self._message

    def finish(self) -> str:
        return self._held


class MaxLength(Rule):
    """Refuses a text that is too long."""

    type = "max_length"

    max_characters: int | None = Field(None, ge=1, description="Most characters that a text may have.")
    max_chars: int | None = Field(None, ge=1, description="The same as max_characters.")
    message: str = Field(
        "The text is too long: it may have at most {max_characters} characters.",
        description="The answer to a refused text; {max_characters} is replaced by the limit.",
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.max_characters is None) == (self.max_chars is None):
            raise ValueError("max_length needs max_characters. Set it once, without max_chars.")
        return self

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        limit = self.max_characters or self.max_chars or 1
        if len(text) <= limit:
            return None
        return Verdict("block", self.message.replace("{max_characters}", str(limit)))
