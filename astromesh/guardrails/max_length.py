"""`max_length`: a text that is too long is refused (document 001, step 3)."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from astromesh.abc.deps import Deps
from astromesh.abc.guardrail import Action, Checked, RuleStream, Verdict


class MaxLengthOptions(BaseModel):
    """Options of `max_length`."""

    model_config = ConfigDict(extra="forbid")

    max_characters: int | None = Field(None, ge=1, description="Most characters that a text may have.")
    max_chars: int | None = Field(None, ge=1, description="The same as max_characters.")
    message: str = Field(
        "The text is too long: it may have at most {max_characters} characters.",
        description="What a refused text is answered with; {max_characters} stands for the bound.",
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.max_characters is None) == (self.max_chars is None):
            raise ValueError("max_length needs max_characters, once.")
        return self

    @property
    def needs_whole_text(self) -> bool:
        """Whether it can only be applied to the whole text, so that its agent streams as `final`."""
        return True


class MaxLength:
    """The plugin, and the rule."""

    Options = MaxLengthOptions
    type = "max_length"
    action: Action = "block"
    max_lookahead: int | None = None

    def __init__(self, most: int, message: str) -> None:
        self._most = most
        self._message = message.replace("{max_characters}", str(most))

    @classmethod
    async def open(cls, options: MaxLengthOptions, deps: Deps) -> MaxLength:
        return cls(options.max_characters or options.max_chars or 1, options.message)

    def check(self, text: str, about: Checked) -> Verdict | None:
        return Verdict("block", self._message) if len(text) > self._most else None

    def stream(self, about: Checked) -> RuleStream:
        raise NotImplementedError("max_length needs the whole text.")
