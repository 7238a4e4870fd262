"""Facts about hosted models: list prices, context windows, attachments, and a rough order of quality.

Prices change; `prices` and `quality` in providers.yaml override them. An unknown model costs 0.0 and is not
`priced`. Amazon Bedrock's ids of models of Anthropic and Amazon are known, too. Sources:
https://platform.claude.com/docs/en/about-claude/pricing, https://aws.amazon.com/bedrock/pricing/ (us-east-1).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


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


class ModelInfo(NamedTuple):
    """Prices in US dollars per million tokens; the window in tokens; quality from 0 to 100."""

    input: float
    output: float
    cached: float
    window: int
    quality: float
    vision: bool = True
    cache_write: float | None = None
    audio: bool = False
    files: bool = True

    @property
    def price(self) -> Price:
        return Price(
            input_per_million=self.input,
            output_per_million=self.output,
            cached_per_million=self.cached,
            cache_write_per_million=self.cache_write,
        )


MODELS: dict[str, ModelInfo] = {
    "gpt-5": ModelInfo(1.25, 10.0, 0.125, 400_000, 92),
    "gpt-5-mini": ModelInfo(0.25, 2.0, 0.025, 400_000, 80),
    "gpt-5-nano": ModelInfo(0.05, 0.4, 0.005, 400_000, 65),
    "gpt-4.1": ModelInfo(2.0, 8.0, 0.5, 1_047_576, 82),
    "gpt-4.1-mini": ModelInfo(0.4, 1.6, 0.1, 1_047_576, 72),
    "gpt-4.1-nano": ModelInfo(0.1, 0.4, 0.025, 1_047_576, 55),
    "gpt-4o": ModelInfo(2.5, 10.0, 1.25, 128_000, 78),
    "gpt-4o-mini": ModelInfo(0.15, 0.6, 0.075, 128_000, 60),
    "o3": ModelInfo(2.0, 8.0, 0.5, 200_000, 88),
    "o4-mini": ModelInfo(1.1, 4.4, 0.275, 200_000, 80),
    "gemini-3-pro-preview": ModelInfo(2.0, 12.0, 0.2, 1_048_576, 94, audio=True),
    "gemini-2.5-pro": ModelInfo(1.25, 10.0, 0.125, 1_048_576, 90, audio=True),
    "gemini-2.5-flash": ModelInfo(0.3, 2.5, 0.03, 1_048_576, 78, audio=True),
    "gemini-2.5-flash-lite": ModelInfo(0.1, 0.4, 0.01, 1_048_576, 62, audio=True),
    "gemini-2.0-flash": ModelInfo(0.1, 0.4, 0.025, 1_048_576, 60, audio=True),
    "claude-opus-4-5": ModelInfo(5.0, 25.0, 0.5, 200_000, 95, cache_write=6.25),
    "claude-opus-4-1": ModelInfo(15.0, 75.0, 1.5, 200_000, 92, cache_write=18.75),
    "claude-sonnet-4-5": ModelInfo(3.0, 15.0, 0.3, 200_000, 90, cache_write=3.75),
    "claude-haiku-4-5": ModelInfo(1.0, 5.0, 0.1, 200_000, 78, cache_write=1.25),
    "claude-3-5-haiku": ModelInfo(0.8, 4.0, 0.08, 200_000, 65, cache_write=1.0),
    "nova-premier": ModelInfo(2.5, 12.5, 0.625, 1_000_000, 76),
    "nova-pro": ModelInfo(0.8, 3.2, 0.2, 300_000, 68),
    "nova-lite": ModelInfo(0.06, 0.24, 0.015, 300_000, 58),
    "nova-micro": ModelInfo(0.035, 0.14, 0.00875, 128_000, 50, vision=False, files=False),
}
_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
#: an id of Bedrock, perhaps at the end of an ARN: where it runs, its maker, the model, its version
_BEDROCK = re.compile(r"(?:.*/)?(?:([a-z-]+)\.)?(?:anthropic|amazon)\.([a-z0-9-]+?)(?:-v\d+(?::\w+)*)?")
#: models that cost more at Bedrock where the id is not `global`
_REGIONAL = frozenset({"claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"})
_REGIONAL_PREMIUM = 1.1


def model_info(model: str) -> ModelInfo | None:
    """Returns the facts about a model, also for a dated snapshot of it (`gpt-4o-2024-08-06`).

    Ids of Bedrock (`eu.anthropic.claude-sonnet-4-5-20250929-v1:0`) have the price of their region.
    """
    place = "global"
    if found := _BEDROCK.fullmatch(model):
        place, model = found[1] or "", found[2]
    name = model if model in MODELS else _DATED.sub("", model)
    info = MODELS.get(name)
    return _regional(info) if info and place != "global" and name in _REGIONAL else info


def _regional(info: ModelInfo) -> ModelInfo:
    prices = {field: getattr(info, field) for field in ("input", "output", "cached", "cache_write")}
    return info._replace(**{field: price and price * _REGIONAL_PREMIUM for field, price in prices.items()})


def cost(
    price: Price | None, input_tokens: int, output_tokens: int, cached: int = 0, written: int = 0
) -> float:
    """Returns the cost in US dollars; `cached` and `written` are parts of `input_tokens`."""
    if price is None:
        return 0.0
    plain = price.input_per_million
    read = plain if price.cached_per_million is None else price.cached_per_million
    write = plain if price.cache_write_per_million is None else price.cache_write_per_million
    fresh = max(0, input_tokens - cached - written)
    total = fresh * plain + cached * read + written * write + output_tokens * price.output_per_million
    return total / 1_000_000
