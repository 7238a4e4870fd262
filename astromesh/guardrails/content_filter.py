"""`content_filter`: forbidden words are redacted, or a safe response takes the text's place (step 10)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from astromesh.abc.deps import Deps
from astromesh.guardrails.spans import SpanRule
from astromesh.guardrails.wording import Keyword, Pattern, unbounded, wording_rule


class ContentFilterOptions(BaseModel):
    """Options of `content_filter`."""

    model_config = ConfigDict(extra="forbid")

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
        """Whether it can only be applied to the whole text, so that its agent streams as `final`."""
        return self.action == "block" or unbounded(self.blocked_patterns)


class ContentFilter:
    """The plugin."""

    Options = ContentFilterOptions

    @classmethod
    async def open(cls, options: ContentFilterOptions, deps: Deps) -> SpanRule:
        return wording_rule(
            "content_filter",
            options.forbidden_keywords,
            options.blocked_patterns,
            options.action,
            (options.replacement, options.safe_response),
        )
