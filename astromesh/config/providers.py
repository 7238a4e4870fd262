"""providers.yaml, kind ProviderConfig, and the model blocks of agents, roles and embeddings that name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, PrivateAttr

from astromesh.config.base import Node, node_from_value
from astromesh.config.environment import VariableName, displayable_name
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
from astromesh.config.validation import accepts_key, keys_of
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


# -- branches of `parallel_fan_out` with their own model -----------------------------------------------------


def branch_model_block(written: Node) -> Node:
    """Returns the model block as written, or that of a name such as `openai/gpt-4o-mini`."""
    if not isinstance(written.value, str):
        return written
    provider, _, model = written.value.partition("/")
    block = node_from_value({"provider": provider, "model": model} if model else {"provider": provider})
    for part in (block, *block.entries.values()):
        part.place = written.place
    return block


def branch_role(branch: int | str) -> str:
    """Returns the role of a branch's model; the brackets keep it apart from roles of users."""
    return f"branches[{branch}]"


def branch_with_role(branch: Node, role: str, model: ModelSpec) -> Node:
    """Returns the branch with its role, and with the model's name instead of its block."""
    name = f"{model.provider}/{model.model}" if model.model else model.provider
    return branch.with_entry("model", node_from_value(name)).with_entry("role", node_from_value(role))


# -- model blocks merged with entries of providers.yaml ------------------------------------------------------

#: the three sources of a key, of which a block names one
KEY_SOURCES = ("api_key", "api_key_env", "api_key_file")
#: mappings that block and entry merge key by key
_MERGED_MAPPINGS = ("parameters", "prices", "quality")


class ProviderEntryNode(NamedTuple):
    """An entry of providers.yaml with its node."""

    record: ProviderEntry
    node: Node

    @property
    def has_type(self) -> bool:
        """Whether its file names the plugin; a missing type is a fault of that file."""
        return not self.node.has_placeholder(("type",))


class ApiKey(NamedTuple):
    """An API key, or an empty one; `missing` says why a configured key could not be read."""

    text: str = ""
    missing: str = ""


def merge_entry(block: Node, entry: ProviderEntryNode | None, options: type[BaseModel]) -> Node:
    """Merges both mappings; the block takes precedence. Values of the entry have no place in its file.

    Keys that only the entry's provider accepts do not reach an embedder of the same name.
    """
    if entry is None:
        return block
    common = keys_of(ProviderEntry)
    base = entry.node.select(
        k for k in entry.node.entries if k in common or accepts_key(options, str(k))
    ).detached()
    if any(key in block.entries for key in KEY_SOURCES):
        base = base.select(key for key in base.entries if key not in KEY_SOURCES)
    both = block.merged_over(base)
    for key in _MERGED_MAPPINGS:
        block_value, entry_value = block.get(key), base.get(key)
        if block_value is not None and entry_value is not None:
            both = both.with_replaced((key,), block_value.merged_over(entry_value))
    return both


def find_key(block: Node, options: type[BaseModel], env: Mapping[str, str], folder: Path) -> ApiKey:
    """Reads the API key of a merged block.

    Args:
        options: the plugin's; they may name the usual variable of the service's key.
        folder: where a relative `api_key_file` starts.
    """
    written = block.get("api_key")
    if written is not None and written.value is not None:
        return _key(block.text("api_key"), ", ".join(written.variables) or "api_key", "is empty")
    if file := block.text("api_key_file"):
        return _key_in_file(folder / file, file)
    if name := block.text("api_key_env") or _default_variable(block, options):
        return _key(env.get(name, ""), displayable_name(name, "api_key_env"), "is not set")
    return ApiKey()


def _default_variable(block: Node, options: type[BaseModel]) -> str:
    """Returns the service's usual variable. Other endpoints must not get its key."""
    own = ("", *getattr(options, "usual_endpoints", ()))
    variable: str = getattr(options, "usual_variable", "")
    return variable if block.text("endpoint").rstrip("/") in own else ""


def _key_in_file(path: Path, named: str) -> ApiKey:
    name = displayable_name(named, "api_key_file", "file")
    where = f"the file {named}" if name == named else name
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not UTF-8, or not a valid file name
        reason = f": {error.strerror}" if isinstance(error, OSError) else ""
        return ApiKey("", f"{where} cannot be read{reason}")
    return _key(text, where, "is empty")


def _key(text: str, where: str, absent: str) -> ApiKey:
    """Checks a key: one that does not fit into a header is a placeholder or contains line breaks."""
    key = text.strip()
    if not key:
        return ApiKey("", f"{where} {absent}")
    if not (key.isascii() and key.isprintable()):
        return ApiKey("", f"{where} contains characters that no key has; only printable ASCII is allowed")
    return ApiKey(key)


def plugin_options(block: Node, options: type[BaseModel], provider: str, model: str, key: ApiKey) -> Node:
    """Returns the plugin's part of a merged block: its own keys, and the common ones that it declares."""
    common = (*keys_of(ModelSpec), *keys_of(ProviderEntry))
    option_keys = keys_of(options)
    keys = [k for k in block.entries if (k in option_keys if k in common else True)]
    if key.text:
        keys = [k for k in keys if k not in KEY_SOURCES]
    added = {"name": provider, "provider": provider, "model": model, "api_key": key.text}
    extra = {k: v for k, v in added.items() if v and k in option_keys and k not in block.entries}
    if key.text and "api_key" in option_keys:
        extra["api_key"] = key.text
    return block.select(keys).merged_over(node_from_value(extra))


def ignored_keys(block: Node, options: type[BaseModel]) -> tuple[str, ...]:
    """Returns the keys of a block that the plugin does not accept."""
    only = ("endpoint", "model", "parameters", "timeout", *KEY_SOURCES)
    reads = any(accepts_key(options, key) for key in KEY_SOURCES)
    return tuple(
        key
        for key in only
        if key in block.entries and not accepts_key(options, key) and not (key in KEY_SOURCES and reads)
    )


def price_and_quality(
    spec: ModelSpec, entry: ProviderEntryNode | None, model: str
) -> tuple[Price | None, float | None]:
    """Returns price and quality of a model; the block takes precedence over the entry."""
    theirs = entry.record if entry else None
    price = spec.prices.get(model) or (theirs.prices.get(model) if theirs else None)
    quality = spec.quality.get(model, theirs.quality.get(model) if theirs else None)
    return price, quality
