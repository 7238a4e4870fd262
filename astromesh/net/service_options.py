"""Options of an HTTP service with a key, shared by models and embedders, and how the key is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from yarl import URL

from astromesh.errors import MissingKey


class ServiceOptions(BaseModel):
    """Where a service is, and its key."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    #: the default variable of the service's key, and the endpoints to which this key is sent; other
    #: endpoints receive it only if the block names it. The configuration reads both, too
    usual_variable: ClassVar[str] = ""
    usual_endpoints: ClassVar[tuple[str, ...]] = ()

    name: str = Field(
        "", description="Name in providers.yaml, shown in answers, errors and metrics; the type if empty."
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

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, endpoint: str) -> str:
        if endpoint and not is_http(endpoint):
            raise ValueError("must be an http or https URL with a host")
        return endpoint

    @property
    def own_headers(self) -> Mapping[str, str]:
        """The further headers in plain text."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}


def is_http(url: str) -> bool:
    """Whether it is an absolute URL over http or https."""
    try:
        parts = URL(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.host)


def read_key(options: ServiceOptions, config_dir: Path) -> str:
    """Returns the key of a block: `api_key`, `api_key_env`, `api_key_file`, else the default variable.

    Args:
        options: the block.
        config_dir: folder of relative paths.

    Returns:
        An empty text if the block needs no key.

    Raises:
        MissingKey: the named variable or file does not contain a key.
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


def _usual_variable(options: ServiceOptions) -> str:
    official = options.endpoint.rstrip("/") in ("", *options.usual_endpoints)
    return options.usual_variable if official else ""


def _clean(text: str, where: str) -> str:
    key = text.strip()
    if not key:
        raise MissingKey(f"No key: {where} is not set or empty.")
    if not (key.isascii() and key.isprintable()):
        raise MissingKey(f"No key: {where} contains invalid characters.")
    return key
