"""`topic_filter`: refuses texts about forbidden topics (document 001, step 3)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astromesh.guardrails.matchers import Keyword, MatchRule


class TopicFilter(MatchRule):
    """Refuses texts about forbidden topics, or redacts their words."""

    type = "topic_filter"
    keywords_key = "forbidden_topics"

    forbidden_topics: list[Keyword] = Field(
        [], description="Words and phrases that stand for the topics; an underscore is a space."
    )
    blocked_topics: list[Keyword] = Field([], description="The same as forbidden_topics.")
    action: Literal["redact", "block"] = Field(
        "block", description="Refuse the text, or replace the places that were found."
    )
    message: str = Field("I can't help with that topic.", description="The answer to a refused text.")

    @property
    def keywords(self) -> list[str]:
        return [*self.forbidden_topics, *self.blocked_topics]

    @property
    def refusal(self) -> str:
        return self.message
