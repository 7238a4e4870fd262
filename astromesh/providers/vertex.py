"""Gemini at Google Cloud's Vertex AI: the wire format of `gemini`, another address, and Google's credentials.

Format: https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/inference
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import quote

import google.auth
import orjson
from google.auth import identity_pool
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request
from google.oauth2 import service_account
from pydantic import Field
from requests import Session

from astromesh.errors import ConfigError, MissingKey, ProviderError, ProviderUnauthorized, ProviderUnavailable
from astromesh.net.http import read_key
from astromesh.plugins import Deps
from astromesh.providers.authorization import AccessToken, AccessTokens, Worker
from astromesh.providers.gemini import GenerateContent
from astromesh.providers.options import ModelOptions
from astromesh.providers.service import ServiceProvider
from astromesh.telemetry.clock import Clock

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: type of a credentials file -> what reads it
_KINDS: Mapping[str, Callable[..., Credentials]] = {
    "service_account": service_account.Credentials.from_service_account_info,
    "external_account": identity_pool.Credentials.from_info,
}


# -- credentials ---------------------------------------------------------------------------------------------


class GoogleCredentials(AccessTokens):
    """Access tokens of a service account, of a workload's identity, or of the environment.

    google-auth reads files and asks Google in a thread of its own.

    Args:
        file: of a service account or a workload identity federation; None: Application Default Credentials.
        clock: for the age of tokens.

    Attributes:
        project: that the credentials name; may be empty.
    """

    def __init__(self, file: Path | None, clock: Clock) -> None:
        super().__init__(self._fetch_token, clock)
        self._file = file
        self._worker = Worker("google-credentials")
        self._credentials: Credentials | None = None
        self.project = ""

    async def __aenter__(self) -> Self:
        try:
            self._credentials, self.project = await self._worker.run(self._find)
        except (GoogleAuthError, OSError, ValueError) as error:
            where = f"the file {self._file.name}" if self._file else "Application Default Credentials"
            raise MissingKey(f"No key: {where} cannot be used: {_first_line(error)}") from error
        return self

    async def __aexit__(self, *details: object) -> None:
        await super().__aexit__(*details)
        await self._worker.__aexit__()

    def _find(self) -> tuple[Credentials, str]:
        if self._file is None:
            found, project = google.auth.default(scopes=_SCOPES)
            return found, project or ""
        described = orjson.loads(self._file.read_bytes())
        if not isinstance(described, dict) or described.get("type") not in _KINDS:
            raise ValueError(f"its `type` is none of {', '.join(_KINDS)}")
        found = _KINDS[described["type"]](described, scopes=_SCOPES)
        return found, described.get("project_id") or ""

    async def _fetch_token(self) -> AccessToken:
        credentials = self._credentials
        assert credentials is not None
        try:
            with Session() as session:  # its connections would stay open until garbage is collected
                await self._worker.run(partial(credentials.refresh, Request(session)))
        except GoogleAuthError as error:
            raise _refused(error) from error
        return AccessToken(str(credentials.token), _expires_at(credentials, self._clock.now()))


def _expires_at(credentials: Credentials, now: float) -> float:
    """Returns when a token expires; one without a time is asked for anew after an hour."""
    if credentials.expiry is None:
        return now + 3600.0
    return float(credentials.expiry.replace(tzinfo=UTC).timestamp())


def _refused(error: GoogleAuthError) -> ProviderError:
    if error.retryable or isinstance(error, TransportError):
        return ProviderUnavailable("cannot be called: Google gave no access token")
    return ProviderUnauthorized("cannot be called: Google refuses an access token to these credentials")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


# -- the wire format -----------------------------------------------------------------------------------------


class VertexOptions(ModelOptions):
    """Options of `vertex`. With a key, Vertex needs no project (its express mode)."""

    project: str = Field(
        "", description="Project of Google Cloud; empty: as GOOGLE_CLOUD_PROJECT or the credentials say."
    )
    location: str = Field(
        "",
        pattern=r"^[a-z0-9-]*$",
        description="Location, e.g. europe-west4; empty: GOOGLE_CLOUD_LOCATION, else `global`.",
    )
    credentials_file: str = Field(
        "",
        description="File of a service account or of a workload identity federation, relative to the "
        "configuration folder; empty: Application Default Credentials.",
    )


class Vertex(GenerateContent[VertexOptions]):
    """The plugin `vertex`: requests and answers of one model."""

    Options = VertexOptions
    kind, usual_endpoint = "vertex", ""

    def __init__(self, options: VertexOptions) -> None:
        super().__init__(options)
        model = f"publishers/google/models/{quote(options.model_name, safe='')}"
        project = f"projects/{options.project}/locations/{options.location}/" if options.project else ""
        self._place(f"/{project}{model}")
        self.ping_path = f"/{model}"

    @classmethod
    async def open(cls, options: VertexOptions, deps: Deps) -> ServiceProvider:
        """Raises: MissingKey: there are no credentials. ConfigError: no project is named."""
        key = read_key(options, deps.config_dir)
        location = options.location or os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
        placed = {"location": location, "endpoint": options.endpoint or _endpoint(location)}
        if key:
            return cls.provider(options.model_copy(update=placed), key, deps.http)
        file = deps.config_dir / options.credentials_file if options.credentials_file else None
        found: GoogleCredentials = await deps.resources.shared(
            ("google credentials", file), lambda: GoogleCredentials(file, deps.clock)
        )
        project = options.project or os.environ.get("GOOGLE_CLOUD_PROJECT") or found.project
        if not project:
            raise ConfigError(
                f"The provider {options.name or cls.kind!r} needs a project: set `project` or "
                "GOOGLE_CLOUD_PROJECT."
            )
        return cls.provider(options.model_copy(update={**placed, "project": project}), "", deps.http, found)


def _endpoint(location: str) -> str:
    host = "aiplatform.googleapis.com"
    return f"https://{host if location == 'global' else f'{location}-{host}'}/v1"
