"""`topic_filter`: refuses texts about forbidden topics (document 001, step 3)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from astromesh.guardrails.matchers import Keyword, Pattern, any_unbounded, match_scanners
from astromesh.guardrails.spans import SpanOptions, SpanRule


class TopicFilterOptions(SpanOptions):
    """Options of `topic_filter`."""

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
        return super().needs_whole_text or any_unbounded(self.blocked_patterns)


class TopicFilter(SpanRule):
    """The plugin, and the rule."""

    Options = TopicFilterOptions
    type = "topic_filter"

    def __init__(self, options: TopicFilterOptions) -> None:
        topics = [*options.forbidden_topics, *options.blocked_topics]
        super().__init__(
            options, match_scanners(topics, options.blocked_patterns, options.replacement), options.message
        )
