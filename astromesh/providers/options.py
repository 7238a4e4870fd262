"""Options that all model services share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from astromesh.net.service_options import ServiceOptions

_RESERVED = ("messages", "model", "stream", "tools")


class Price(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input_per_million: float = Field(0.0, ge=0, description="Price of a million input tokens.")
    output_per_million: float = Field(0.0, ge=0, description="Price of a million output tokens.")
    cached_per_million: float | None = Field(
        None,
        ge=0,
        description="Price of a million input tokens read from the provider's cache; else the input price.",
    )
    cache_write_per_million: float | None = Field(
        None, ge=0, description="Price of a million input tokens written to the cache; else the input price."
    )


class ModelOptions(ServiceOptions):
    """Options that all model services share."""

    model: str = Field("", description="The model; the first of `models` if empty.")
    models: tuple[str, ...] = Field(
        (), description="Models that this endpoint is used with; the first is the default."
    )
    timeout: float = Field(
        60.0, gt=0, description="Seconds for a whole answer; in a stream, seconds without data."
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Sent with every call, e.g. temperature and max_tokens."
    )
    prices: dict[str, Price] = Field(
        default_factory=dict, description="Prices by model; they override the built-in table."
    )
    quality: dict[str, float] = Field(
        default_factory=dict,
        description="Quality by model, 0 to 100, for `quality_first`; overrides the built-in table.",
    )
    context_window: int | None = Field(
        None, gt=0, description="Tokens that the model accepts, if not in the built-in table."
    )
    vision: bool | None = Field(
        None, description="Whether the model accepts images, if not in the built-in table."
    )
    tools: bool = Field(True, description="Whether the model can call tools.")

    @field_validator("parameters")
    @classmethod
    def _nothing_reserved(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if clash := sorted(set(parameters) & set(_RESERVED)):
            raise ValueError(f"parameters must not contain {', '.join(clash)}: astromesh sets them")
        return parameters

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self.model or (self.models[0] if self.models else "")
