"""`topic_filter`: texts about forbidden topics are refused (document 001, step 3)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from astromesh.abc.deps import Deps
from astromesh.guardrails.spans import SpanRule
from astromesh.guardrails.wording import Keyword, Pattern, unbounded, wording_rule


class TopicFilterOptions(BaseModel):
    """Options of `topic_filter`."""

    model_config = ConfigDict(extra="forbid")

    forbidden_topics: list[Keyword] = Field(
        [], description="Words and phrases that stand for the topics; an underscore is a space."
    )
    blocked_topics: list[Keyword] = Field([], description="The same as forbidden_topics.")
    blocked_patterns: list[Pattern] = Field([], description="RE2 patterns that stand for the topics.")
    action: Literal["block", "redact"] = Field(
        "block", description="Refuse the text, or replace the places that were found."
    )
    message: str = Field("I can't help with that topic.", description="What a refused text is answered with.")
    replacement: str = Field("[REDACTED]", description="What stands for a place that was redacted.")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not (self.forbidden_topics or self.blocked_topics or self.blocked_patterns):
            raise ValueError("topic_filter needs forbidden_topics or blocked_patterns, or it finds nothing.")
        return self

    @property
    def needs_whole_text(self) -> bool:
        """Whether it can only be applied to the whole text, so that its agent streams as `final`."""
        return self.action == "block" or unbounded(self.blocked_patterns)


class TopicFilter:
    """The plugin."""

    Options = TopicFilterOptions

    @classmethod
    async def open(cls, options: TopicFilterOptions, deps: Deps) -> SpanRule:
        return wording_rule(
            "topic_filter",
            [*options.forbidden_topics, *options.blocked_topics],
            options.blocked_patterns,
            options.action,
            (options.replacement, options.message),
        )
