"""`content_filter`: redacts forbidden words, or replaces the text by a safe response (step 10)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from astromesh.guardrails.matchers import Keyword, Pattern, any_unbounded, match_scanners
from astromesh.guardrails.spans import SpanOptions, SpanRule


class ContentFilterOptions(SpanOptions):
    """Options of `content_filter`."""

    forbidden_keywords: list[Keyword] = Field(
        [], description="Words and phrases that must not stand in the text; an underscore is a space."
    )
    blocked_patterns: list[Pattern] = Field([], description="RE2 patterns that must not match.")
    action: Literal["redact", "block"] = Field(
        "redact", description="Replace the places that were found, or the whole text by safe_response."
    )
    safe_response: str = Field("I can't share that.", description="What stands for a blocked text.")
    replacement: str = Field("[REDACTED]", description="What stands for a place that was redacted.")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not (self.forbidden_keywords or self.blocked_patterns):
            raise ValueError(
                "content_filter needs forbidden_keywords or blocked_patterns, or it finds nothing."
            )
        return self

    @property
    def needs_whole_text(self) -> bool:
        return super().needs_whole_text or any_unbounded(self.blocked_patterns)


class ContentFilter(SpanRule):
    """The plugin, and the rule."""

    Options = ContentFilterOptions
    type = "content_filter"

    def __init__(self, options: ContentFilterOptions) -> None:
        scanners = match_scanners(options.forbidden_keywords, options.blocked_patterns, options.replacement)
        super().__init__(options, scanners, options.safe_response)
