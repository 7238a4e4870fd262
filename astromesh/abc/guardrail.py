"""The guardrail seam: a rule looks at a text and says what becomes of it (document 001, steps 3 and 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Stage = Literal["input", "output"]
Action = Literal["pass", "redact", "block", "truncate"]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a rule is told beside the text.

    Args:
        tokens_used: tokens of the whole turn so far, for `cost_limit`.
        output_tokens: those of the answer.
    """

    stage: Stage
    tokens_used: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided.

    Args:
        text: the text to go on with; for `block` on output the safe response, on input the rejection message.
        count: how many places it touched; 0 for `pass`.
    """

    action: Action
    text: str
    count: int = 0


class Guardrail(Protocol):
    """One rule. Pure, synchronous, bounded time: linear in the text, whatever the patterns."""

    type: str

    def check(self, text: str, about: Checked) -> Verdict: ...

    def settled(self, text: str) -> int:
        """How many leading characters of a text that still grows no continuation can change any more.

        What stands before that position may leave a token stream. A rule that may block or cut the whole
        returns 0: its agent streams as `final`. Bounded hold-back: the rest is at most a fixed length for
        rules that only redact.
        """
