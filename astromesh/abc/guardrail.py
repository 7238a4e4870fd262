"""The guardrail seam: a rule looks at a text and says what becomes of it (document 001, steps 3, 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Stage = Literal["input", "output"]
Action = Literal["redact", "block", "truncate"]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a rule is told beside the text.

    Args:
        tokens_used: tokens of the whole turn so far, those of the text included where they are counted.
        output_tokens: those of the text; 0: nobody has counted them yet, as while it streams.
    """

    stage: Stage
    tokens_used: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule did to a text. A text that passes has no verdict.

    Args:
        text: the text to go on with; for `block` on output the safe response, on input the rejection message.
        count: how many places it touched.
    """

    action: Action
    text: str
    count: int = 1


class RuleStream(Protocol):
    """One rule on one text that arrives in pieces.

    Whatever the pieces: all that `feed` and `finish` answer joins to what `check` makes of the whole text.
    """

    @property
    def count(self) -> int:
        """Places touched so far, as in `Verdict`."""

    @property
    def done(self) -> bool:
        """Nothing that follows can be released any more, so the model may stop."""

    def feed(self, text: str) -> str:
        """Takes the next piece; answers what no continuation can change any more."""

    def finish(self) -> str:
        """Says that the text is over; answers the rest."""


class Guardrail(Protocol):
    """One rule. Pure, synchronous, linear in the text whatever the patterns.

    A property `needs_whole_text` of its plugin's `Options` tells the configuration that it cannot stream.
    """

    type: str
    action: Action

    @property
    def max_lookahead(self) -> int | None:
        """Most characters that a stream holds back; None: it needs the whole text, as all that block do.

        With such a rule an agent streams as `final`.
        """

    def check(self, text: str, about: Checked) -> Verdict | None:
        """What becomes of a text; None: it passes unchanged."""

    def stream(self, about: Checked) -> RuleStream:
        """A stream of its own. Called only where `max_lookahead` is a number."""
