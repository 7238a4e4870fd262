"""providers.yaml, kind ProviderConfig, and the model blocks of agents, roles and embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr

from astromesh.config.environment import VariableName
from astromesh.config.records import (
    Amount,
    Block,
    Count,
    JsonMap,
    Manifest,
    Metadata,
    Name,
    NamesPlugin,
    Record,
    Seconds,
    Secret,
)
from astromesh.errors import ConfigError

# -- model blocks --------------------------------------------------------------------------------------------


class Price(Record):
    """Price of a model in US dollars."""

    input_per_million: Amount = Field(0.0, description="US dollars per million input tokens.")
    output_per_million: Amount = Field(0.0, description="US dollars per million output tokens.")
    cached_per_million: Amount | None = Field(
        None,
        description="US dollars per million input tokens read from the provider's cache; absent: as input.",
    )
    cache_write_per_million: Amount | None = Field(
        None, description="US dollars per million input tokens written to that cache; absent: as input."
    )


@dataclass(frozen=True, slots=True)
class ModelBlock:
    """A model block, resolved against providers.yaml and the environment.

    Args:
        provider: as written: a name of providers.yaml or of a plugin.
        plugin: the plugin's name, in group `providers` (`embedders` for embeddings).
        model: the model's name, empty where the plugin has only one.
        options: the plugin's validated `Options`: what block and providers.yaml say together.
        price, quality: for the router; None where unknown.
        skipped: why this model cannot be used, e.g. `OPENAI_API_KEY is not set`; empty where it can.
    """

    provider: str
    plugin: str
    model: str
    options: BaseModel
    price: Price | None = None
    quality: float | None = None
    skipped: str = ""

    @property
    def name(self) -> str:
        """`openai/gpt-4o-mini`, as in metrics and errors."""
        return f"{self.provider}/{self.model}" if self.model else self.provider


class Endpoint(Block):
    """The common keys of a model block and an entry of providers.yaml. All other keys are the plugin's.

    Block and entry are merged, the block wins. A plugin's `Options` gets of the result what it declares:
    `model, endpoint, api_key` (from wherever it came), `timeout, parameters`, `models, prices, quality`, and
    `name` (the block's `provider`). Writing one of the first five for a plugin that does not declare it is a
    fault; prices and quality are the router's, too.
    """

    endpoint: str = Field("", description="Base URL; empty: the plugin's own default.")
    api_key_env: VariableName = Field("", description="Environment variable that holds the API key.")
    api_key_file: str = Field("", description="File that holds the API key.")
    api_key: Secret | None = Field(None, description="The API key itself; prefer api_key_env.")
    timeout: Seconds = Field(60.0, description="Seconds one call may take.")
    parameters: JsonMap = Field(
        default_factory=dict, description="temperature, max_tokens, …: sent with each call."
    )
    prices: dict[str, Price] = Field(default_factory=dict, description="Price by model.")
    quality: dict[str, Amount] = Field(
        default_factory=dict, description="Rank by model for quality_first, higher is better."
    )


class ModelSpec(Endpoint):
    """A model block as written. Its provider is an entry of providers.yaml, or a plugin."""

    provider: Annotated[str, NamesPlugin("providers")] = Field(
        min_length=1, description="A name of providers.yaml, or of a provider plugin."
    )
    model: str = Field("", description="The model's name; absent: the first of `models` in providers.yaml.")

    _block: ModelBlock | None = PrivateAttr(default=None)

    @property
    def block(self) -> ModelBlock:
        """The block, resolved; see ModelBlock."""
        if self._block is None:
            raise ConfigError(
                f"The model block of {self.provider!r} was not resolved by astromesh.config.folder.load."
            )
        return self._block

    @property
    def options(self) -> Any:
        return self.block.options

    @property
    def lacks_price(self) -> bool:
        """Whether the model's price is unknown. The options of a plugin may state it as `priced`."""
        return self._block is not None and not (
            self._block.price or getattr(self._block.options, "priced", True)
        )

    def resolve(self, block: ModelBlock) -> None:
        """Stores the resolved block; called once, at load."""
        self._block = block


class Embeddings(ModelSpec):
    """A model block whose plugin is an embedder."""

    provider: Annotated[str, NamesPlugin("embedders")] = Field(
        min_length=1, description="A name of providers.yaml, or of an embedder plugin."
    )


Strategy = Literal[
    "cost_optimized", "latency_optimized", "quality_first", "round_robin", "capability_match", "priority"
]


class ProviderEntry(Endpoint):
    """One endpoint with its models."""

    type: Annotated[str, NamesPlugin("providers")] = Field(
        min_length=1, description="Name of the provider plugin."
    )
    models: tuple[str, ...] = Field(
        (), description="Models of the endpoint; the first is the default, unlisted ones cause a warning."
    )


class CircuitBreaker(Record):
    failure_threshold: Count = Field(3, description="Failures in a row that open the circuit.")
    recovery_timeout: Seconds = Field(
        60.0, description="Seconds until an open circuit allows one trial call."
    )


class ProviderRouting(Record):
    default_strategy: Strategy = Field("priority", description="For agents that name no routing.strategy.")
    circuit_breaker: CircuitBreaker = CircuitBreaker.empty()


class ProviderSpec(Record):
    providers: dict[Name, ProviderEntry] = Field(default_factory=dict, description="Endpoints by name.")
    routing: ProviderRouting = ProviderRouting.empty()


class ProviderManifest(Manifest):
    kind: Literal["ProviderConfig"]
    metadata: Metadata = Metadata.empty()
    spec: ProviderSpec = ProviderSpec.empty()
