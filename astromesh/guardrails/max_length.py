"""`max_length`: refuses a text that is too long (document 001, step 3)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from astromesh.guardrails.base import CheckContext, Rule, Verdict


class MaxLength(Rule):
    """Refuses a text that is too long."""

    type = "max_length"

    max_characters: int | None = Field(None, ge=1, description="Most characters that a text may have.")
    max_chars: int | None = Field(None, ge=1, description="The same as max_characters.")
    message: str = Field(
        "The text is too long: it may have at most {max_characters} characters.",
        description="The answer to a refused text; {max_characters} is replaced by the limit.",
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.max_characters is None) == (self.max_chars is None):
            raise ValueError("max_length needs max_characters. Set it once.")
        return self

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        limit = self.max_characters or self.max_chars or 1
        if len(text) <= limit:
            return None
        return Verdict("block", self.message.replace("{max_characters}", str(limit)))
