"""`content_filter`: redacts forbidden words, or replaces the text (document 001, step 10)."""

from __future__ import annotations

from pydantic import Field

from astromesh.guardrails.matchers import Keyword, MatchRule


class ContentFilter(MatchRule):
    """Redacts forbidden words and patterns, or replaces the text by a safe response."""

    type = "content_filter"
    keywords_key = "forbidden_keywords"

    forbidden_keywords: list[Keyword] = Field(
        [], description="Words and phrases that must not appear in the text; an underscore is a space."
    )
    safe_response: str = Field("I can't share that.", description="Text that replaces a blocked text.")

    @property
    def keywords(self) -> list[str]:
        return self.forbidden_keywords

    @property
    def refusal(self) -> str:
        return self.safe_response
