"""Options that all model services share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from astromesh.net.http import ServiceOptions
from astromesh.providers.base import Capabilities
from astromesh.providers.catalog import Price, model_info


class ModelOptions(ServiceOptions):
    """Options that all model services share.

    Attributes:
        reserved: parts of a request that `parameters` must not contain.
    """

    reserved: ClassVar[tuple[str, ...]] = ("messages", "model", "stream", "tools")

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
    audio: bool | None = Field(
        None, description="Whether the model accepts audio, if not in the built-in table."
    )
    files: bool | None = Field(
        None, description="Whether the model reads PDF files, if not in the built-in table."
    )
    tools: bool = Field(True, description="Whether the model can call tools.")

    @field_validator("parameters")
    @classmethod
    def _nothing_reserved(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if clash := sorted(set(parameters) & set(cls.reserved)):
            raise ValueError(f"parameters must not contain {', '.join(clash)}: astromesh sets them")
        return parameters

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self.model or (self.models[0] if self.models else "")

    @property
    def priced(self) -> bool:
        """Whether the price of the model is known."""
        return price_of(self) is not None


def price_of(options: ModelOptions) -> Price | None:
    """Returns the price of the block's model: the operator's, else the list price; None if unknown."""
    if (own := options.prices.get(options.model_name)) is not None:
        return own
    found = model_info(options.model_name)
    return found.price if found else None


def capabilities_of(options: ModelOptions, *, json: bool = True) -> Capabilities:
    """Returns the features of the block's model: the operator's, else the table's, else the defaults."""
    found = model_info(options.model_name)
    quality = options.quality.get(options.model_name, found.quality if found else 50.0)
    return Capabilities(
        tools=options.tools,
        vision=options.vision if options.vision is not None else bool(found and found.vision),
        json=json,
        context_window=options.context_window or (found.window if found else 0),
        quality=quality,
        priced=options.priced,
        answer_tokens=_answer_tokens(options.parameters),
        text_only=options.vision is False,
        audio=options.audio if options.audio is not None else bool(found and found.audio),
        files=options.files if options.files is not None else bool(found and found.files),
    )


#: names of the limit of an answer, in the APIs' own words too
_LIMITS = ("max_tokens", "max_completion_tokens", "maxOutputTokens", "num_predict")


def _answer_tokens(parameters: Mapping[str, Any]) -> int:
    limits = (parameters.get(name) for name in _LIMITS)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), 0)
