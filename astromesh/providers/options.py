"""What every model service's block in YAML may hold, and where its key comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from yarl import URL

from astromesh.errors import MissingKey

_RESERVED = ("messages", "model", "stream", "tools")


def is_http(url: str) -> bool:
    """Whether it is an absolute URL over http or https."""
    try:
        parts = URL(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.host)


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


class ModelOptions(BaseModel):
    """Options that all model services share."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    #: the variable that holds the service's key where a block names none, and the endpoints that it
    #: belongs to: others never get that key unasked. The configuration reads both, too
    usual_variable: ClassVar[str] = ""
    usual_endpoints: ClassVar[tuple[str, ...]] = ()

    name: str = Field(
        "", description="Name in providers.yaml, shown in answers, errors and metrics; the type if empty."
    )
    model: str = Field("", description="The model; the first of `models` if empty.")
    models: tuple[str, ...] = Field(
        (), description="Models that this endpoint is used with; the first is the default."
    )
    endpoint: str = Field("", description="Base URL; the service's own if empty. Trusted, loopback included.")
    api_key_env: str = Field("", description="Environment variable that holds the key.")
    api_key_file: str = Field(
        "", description="File that holds the key, relative to the configuration folder."
    )
    api_key: SecretStr | None = Field(None, description="The key itself; better kept out of files.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Further headers, e.g. of a gateway."
    )
    timeout: float = Field(60.0, gt=0, description="Seconds for a whole answer; in a stream, of silence.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Sent with every call, e.g. temperature and max_tokens."
    )
    prices: dict[str, Price] = Field(
        default_factory=dict, description="Prices by model, over the built-in table."
    )
    quality: dict[str, float] = Field(
        default_factory=dict,
        description="Quality by model, 0 to 100, for `quality_first`, over the built-in table.",
    )
    context_window: int | None = Field(
        None, gt=0, description="Tokens that the model takes, where not known."
    )
    vision: bool | None = Field(None, description="Whether the model sees pictures, where not known.")
    tools: bool = Field(True, description="Whether the model can call tools.")

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, endpoint: str) -> str:
        if endpoint and not is_http(endpoint):
            raise ValueError("must be an http or https URL with a host")
        return endpoint

    @field_validator("parameters")
    @classmethod
    def _nothing_reserved(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if clash := sorted(set(parameters) & set(_RESERVED)):
            raise ValueError(f"parameters must not hold {', '.join(clash)}: astromesh sets that itself")
        return parameters

    @property
    def chosen(self) -> str:
        """The model's name."""
        return self.model or (self.models[0] if self.models else "")


def read_key(options: ModelOptions, config_dir: Path) -> str:
    """The key of a block: `api_key`, `api_key_env`, `api_key_file`, else the service's usual variable.

    Args:
        options: the block.
        config_dir: where relative files start.

    Returns:
        Empty where none is asked for.

    Raises:
        MissingKey: the named variable or file does not hold a key.
    """
    if options.api_key is not None:
        return _clean(options.api_key.get_secret_value(), "api_key")
    if variable := options.api_key_env or ("" if options.api_key_file else _usual_variable(options)):
        return _clean(os.environ.get(variable, ""), f"the environment variable {variable}")
    if options.api_key_file:
        path = config_dir / options.api_key_file
        try:
            return _clean(path.read_text(encoding="utf-8"), f"the file {options.api_key_file}")
        except (OSError, UnicodeDecodeError) as error:
            raise MissingKey(f"The key file {options.api_key_file} cannot be read.") from error
    return ""


def _usual_variable(options: ModelOptions) -> str:
    official = options.endpoint.rstrip("/") in ("", *options.usual_endpoints)
    return options.usual_variable if official else ""


def _clean(text: str, where: str) -> str:
    key = text.strip()
    if not key:
        raise MissingKey(f"No key: {where} is not set or empty.")
    if not (key.isascii() and key.isprintable()):
        raise MissingKey(f"No key: {where} holds characters that no key has.")
    return key
