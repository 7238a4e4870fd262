"""The protocol of guardrails (document 001, steps 3 and 10): a rule checks a text and returns a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field

#: the step of a rule: input rules check queries, output rules answers and what is sent or stored with them
Stage = Literal["input", "output"]
#: the kind of a text; output rules check arguments and results of tools before they are shown or stored
Place = Literal["input", "output", "tool_argument", "tool_result"]
Action = Literal["redact", "block", "truncate", "warn"]
#: the parts of a request that input rules check
Part = Literal["query", "context", "metadata"]


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The circumstances of a text.

    Args:
        place: the kind of the text.
        tokens_used: tokens of the whole turn so far, with those of the text if they are counted.
        output_tokens: tokens of the text; 0: not counted yet, as while it streams.
    """

    place: Place
    tokens_used: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a rule. A text that passes has no verdict.

    Args:
        text: the text that replaces the checked one; for `block` the safe response (output) or the rejection
            message (input); for `warn` the checked text.
        count: the number of places that the rule changed, or warns of.
    """

    action: Action
    text: str
    count: int = 1


class RuleStream(Protocol):
    """One rule on one text that arrives in pieces.

    However the text is cut, the results of `feed` and `finish` join to the text that `check` returns for the
    whole.
    """

    @property
    def action(self) -> Action:
        """The action of the rule on a text that streams."""

    @property
    def count(self) -> int:
        """Places that the rule has changed so far, as in `Verdict`."""

    @property
    def done(self) -> bool:
        """Whether the rule releases nothing more, so that the model may stop."""

    def feed(self, text: str) -> str:
        """Takes the next piece; returns the text that no continuation can change."""

    def finish(self) -> str:
        """Ends the text; returns the rest."""


class Guardrail(Protocol):
    """One rule: pure, synchronous, and linear in the length of the text. `Rule` is a base for it."""

    @property
    def type(self) -> str:
        """The `type` in YAML."""

    @property
    def needs_whole_text(self) -> bool:
        """Whether the rule cannot stream; with such an output rule an agent streams as `final`."""

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        """The verdict on any `str`, lone surrogates included; None: it passes unchanged."""

    def stream(self, context: CheckContext) -> RuleStream:
        """A new stream; called only if the rule does not need the whole text."""


def parts_of(rule: Guardrail) -> tuple[Part, ...]:
    """Returns what an input rule checks; a rule of another class than `Rule` checks the query."""
    if isinstance(rule, Rule):
        return rule.apply_to or rule.default_parts
    return ("query",)


class Rule(BaseModel):
    """A rule that is its own plugin: its fields are the options in YAML. Define `type` and `check`.

    A rule that can check a stream overrides `needs_whole_text`, which the configuration reads, too, and
    `stream`.
    """

    model_config = ConfigDict(extra="forbid")

    type: ClassVar[str]
    Options: ClassVar[Any]
    #: what an input rule checks without `apply_to`
    default_parts: ClassVar[tuple[Part, ...]] = ("query",)

    apply_to: tuple[Part, ...] | None = Field(
        None,
        min_length=1,
        description="Of an input rule: the parts of a request that it checks. Of context and metadata it "
        "checks the texts, and never the names.",
    )

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
        """The verdict on a text; None: it passes unchanged."""
        raise NotImplementedError

    def stream(self, context: CheckContext) -> RuleStream:
        """A new stream; called only if the rule does not need the whole text."""
        raise NotImplementedError(f"{self.type} needs the whole text.")


@dataclass(frozen=True, slots=True)
class RetrievedPassage:
    """A passage that a run has retrieved. Args: document: its id."""

    document: str
    text: str


class AnswerRule(Rule):
    """An output rule that compares the answer of a run with what the run has retrieved.

    It is asked once for each answer, before the other output rules, and only if the run has retrieved
    passages. `check` sees every other text, too.
    """

    #: the plugin of the embedder that `deps.embedder` is, with its default options
    embedder_plugin: ClassVar[str] = ""

    async def check_answer(self, answer: str, passages: Sequence[RetrievedPassage]) -> Verdict | None:
        """The verdict on an answer: `warn` or `block`; None: it passes.

        Raises:
            ProviderError: the answer cannot be checked.
        """
        raise NotImplementedError
