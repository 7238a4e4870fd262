"""The protocol of guardrails: a rule checks a text and returns a verdict (document 001, steps 3 and 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict

#: the step of a rule: on the query, or on the answer and what leaves beside it
Stage = Literal["input", "output"]
#: what a text is; tool arguments and results are checked by output rules before they are shown or stored
Place = Literal["input", "output", "tool_argument", "tool_result"]
Action = Literal["redact", "block", "truncate"]


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a rule knows beside the text.

    Args:
        place: what the text is.
        tokens_used: tokens of the whole turn so far, with those of the text if they are counted.
        output_tokens: tokens of the text; 0: not counted yet, as while it streams.
    """

    place: Place
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

    However the text is cut, the results of `feed` and `finish` join to what `check` makes of the whole.
    """

    @property
    def action(self) -> Action:
        """What the rule does to a text that streams."""

    @property
    def count(self) -> int:
        """Places touched so far, as in `Verdict`."""

    @property
    def done(self) -> bool:
        """Whether the rule releases nothing more, so that the model may stop."""

    def feed(self, text: str) -> str:
        """Takes the next piece; returns what no continuation can change any more."""

    def finish(self) -> str:
        """Ends the text; returns the rest."""


class Guardrail(Protocol):
    """One rule. Pure, synchronous, linear in the text whatever the patterns. `Rule` is a base for it."""

    @property
    def type(self) -> str:
        """The `type` in YAML."""

    @property
    def needs_whole_text(self) -> bool:
        """Whether the rule cannot stream; with such an output rule an agent streams as `final`."""

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        """What becomes of a text; None: it passes unchanged."""

    def stream(self, context: CheckContext) -> RuleStream:
        """A new stream; called only if the rule does not need the whole text."""


class Rule(BaseModel):
    """A rule that is its own plugin: its fields are the options in YAML. Define `type` and `check`.

    A rule that can check a stream overrides `needs_whole_text`, which the configuration reads, too, and
    `stream`.
    """

    model_config = ConfigDict(extra="forbid")

    type: ClassVar[str]
    Options: ClassVar[Any]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.Options = cls

    @classmethod
    async def open(cls, options: Self, deps: Any) -> Self:
        """The rule; `deps` are `astromesh.plugins.Deps`."""
        return options

    @property
    def needs_whole_text(self) -> bool:
        return True

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        """What becomes of a text; None: it passes unchanged."""
        raise NotImplementedError

    def stream(self, context: CheckContext) -> RuleStream:
        """A new stream; called only if the rule does not need the whole text."""
        raise NotImplementedError(f"{self.type} needs the whole text.")
