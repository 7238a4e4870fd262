"""`cost_limit`: an answer ends where its turn's tokens do (document 001, step 10).

The turn's tokens are those of all prompts and calls before the answer and those of the answer. Where nobody
has counted the answer's, as while it streams, `CHARACTERS_PER_TOKEN` stand for one.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.guardrail import Action, Checked, RuleStream, Verdict

CHARACTERS_PER_TOKEN = 4
#: how far before the bound a sentence end is looked for, in characters; a stream holds back as much
LOOK_BACK = 400

_SENTENCE_END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n)")
_SPACE = re.compile(r"\s+")


class CostLimitOptions(BaseModel):
    """Options of `cost_limit`."""

    model_config = ConfigDict(extra="forbid")

    max_tokens_per_turn: int = Field(
        ge=1, description="Most tokens that one turn may use, over all its calls."
    )
    action: Literal["truncate", "block"] = Field(
        "truncate", description="Cut the answer at a sentence end, or let the message stand for it."
    )
    message: str = Field(
        "I had to stop here: this turn has used up its tokens.",
        description="What stands for an answer that is blocked, or of which nothing is left.",
    )

    @property
    def needs_whole_text(self) -> bool:
        """Whether it can only be applied to the whole text, so that its agent streams as `final`."""
        return self.action == "block"


class CostLimit:
    """The plugin, and the rule."""

    Options = CostLimitOptions
    type = "cost_limit"

    def __init__(self, most: int, action: Action, message: str) -> None:
        self.action: Action = action
        self._most, self._message = most, message

    @classmethod
    async def open(cls, options: CostLimitOptions, deps: Deps) -> CostLimit:
        return cls(options.max_tokens_per_turn, options.action, options.message)

    @property
    def max_lookahead(self) -> int | None:
        return LOOK_BACK if self.action == "truncate" else None

    def check(self, text: str, about: Checked) -> Verdict | None:
        allowed = self._most - about.tokens_used + about.output_tokens
        if about.output_tokens:
            bound = len(text) * allowed // about.output_tokens
        else:
            bound = allowed * CHARACTERS_PER_TOKEN
        if len(text) <= max(bound, 0):
            return None
        if self.action == "block":
            return Verdict("block", self._message)
        return Verdict("truncate", text[: cut_at(text, bound)] or self._message)

    def stream(self, about: Checked) -> RuleStream:
        return _CostStream((self._most - about.tokens_used) * CHARACTERS_PER_TOKEN, self._message)


def cut_at(text: str, bound: int) -> int:
    """Where a text of more than `bound` characters ends: after a sentence, else after a word, else there."""
    if bound <= 0:
        return 0
    first = max(bound - LOOK_BACK, 0)
    for breaks in (_SENTENCE_END, _SPACE):
        ends = [found.end() for found in breaks.finditer(text[: bound + 1], first) if found.end() <= bound]
        if ends:
            return first + len(text[first : ends[-1]].rstrip())
    return bound


class _CostStream:
    """Releases freely until the bound is near, then holds back what the cut may take."""

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
        kept = self._held[: cut_at(self._held, self._bound - self._released)]
        self._held = ""
        return kept if kept or self._released else self._message

    def finish(self) -> str:
        return self._held
