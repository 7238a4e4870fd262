"""Azure OpenAI without a key: access tokens of Microsoft Entra ID for an application or a managed identity.

Flows: https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

from pydantic import Field, model_validator

from astromesh.errors import (
    ConfigError,
    MissingKey,
    NetError,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from astromesh.net.http import Http, HttpResponse, read_key
from astromesh.plugins import Deps
from astromesh.providers.authorization import AccessToken, AccessTokens
from astromesh.providers.options import ModelOptions
from astromesh.providers.service import ServiceProvider, Wire
from astromesh.telemetry.clock import Clock

SCOPE = "https://cognitiveservices.azure.com/.default"
_AUTHORITY = "https://login.microsoftonline.com"
#: where a virtual machine asks for the tokens of its identity
_MACHINE = "http://169.254.169.254/metadata/identity/oauth2/token"
_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_FORM = ("content-type", "application/x-www-form-urlencoded")
_SECONDS = 20.0
_UNANSWERED = "cannot be called: Microsoft Entra gave no token"


class EntraOptions(ModelOptions):
    """Options of services that accept tokens of Microsoft Entra ID."""

    entra: Literal["", "client_credentials", "managed_identity", "workload_identity"] = Field(
        "",
        description="How Azure OpenAI knows the caller without a key of its own: as an application, whose "
        "secret is the key of the block, else AZURE_CLIENT_SECRET; as the identity of the machine; or by "
        "the token of a Kubernetes service account.",
    )
    entra_tenant: str = Field("", description="Tenant of the application; empty: AZURE_TENANT_ID.")
    entra_client: str = Field(
        "", description="Client id of application or identity; empty: AZURE_CLIENT_ID, or the only identity."
    )
    entra_scope: str = Field(SCOPE, description="What a token is for; other clouds have other scopes.")

    @model_validator(mode="after")
    def _has_a_resource(self) -> Self:
        if self.entra and not self.endpoint:
            raise ValueError("entra needs the `endpoint` of the Azure resource")
        return self


OptionsT = TypeVar("OptionsT", bound=EntraOptions)


class EntraWire(Wire[OptionsT]):
    """A wire format of a service that accepts tokens of Microsoft Entra ID beside keys."""

    @classmethod
    async def open(cls, options: OptionsT, deps: Deps) -> ServiceProvider:
        """Raises: MissingKey: a key, a secret or a token is missing. ConfigError: the tenant or client is."""
        if not options.entra:
            return await super().open(options, deps)
        asking = token_request(options, read_key(options, deps.config_dir))
        tokens = await deps.resources.shared(asking, lambda: EntraTokens(asking, deps.http, deps.clock))
        return cls.provider(options, "", deps.http, tokens)


class TokenRequest(NamedTuple):
    """The call that returns a token.

    Args:
        fields: of its form, or of its query.
        assertion_file: the token of a workload, sent as `client_assertion`; Kubernetes replaces its content.
    """

    url: str
    fields: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...] = ()
    assertion_file: str = ""
    method: Literal["GET", "POST"] = "POST"


def token_request(options: EntraOptions, key: str) -> TokenRequest:
    """Returns the call for the tokens of a block. Raises: MissingKey, ConfigError."""
    if options.entra == "managed_identity":
        return _identity_request(options)
    tenant = options.entra_tenant or os.environ.get("AZURE_TENANT_ID", "")
    client = options.entra_client or os.environ.get("AZURE_CLIENT_ID", "")
    for value, name in ((tenant, "tenant"), (client, "client")):
        if not value:
            raise ConfigError(
                f"The provider {options.name or 'openai'!r} needs a {name} of Microsoft Entra: "
                f"set `entra_{name}` or AZURE_{name.upper()}_ID."
            )
    authority = os.environ.get("AZURE_AUTHORITY_HOST", _AUTHORITY).rstrip("/")
    url = f"{authority if '://' in authority else f'https://{authority}'}/{tenant}/oauth2/v2.0/token"
    fields = (("grant_type", "client_credentials"), ("client_id", client), ("scope", options.entra_scope))
    if options.entra == "client_credentials":
        return TokenRequest(url, (*fields, ("client_secret", _secret(key))))
    file = os.environ.get("AZURE_FEDERATED_TOKEN_FILE", "")
    if not file:
        raise MissingKey("No key: AZURE_FEDERATED_TOKEN_FILE does not name the token of this workload.")
    return TokenRequest(url, (*fields, ("client_assertion_type", _ASSERTION)), assertion_file=file)


def _identity_request(options: EntraOptions) -> TokenRequest:
    fields = [("resource", options.entra_scope.removesuffix("/.default"))]
    if options.entra_client:
        fields.append(("client_id", options.entra_client))
    if endpoint := os.environ.get("IDENTITY_ENDPOINT"):  # App Service, Functions, Container Apps
        headers = (("x-identity-header", os.environ.get("IDENTITY_HEADER", "")),)
        query = (("api-version", "2019-08-01"), *fields)
        return TokenRequest(endpoint, query, headers, method="GET")
    return TokenRequest(
        _MACHINE, (("api-version", "2018-02-01"), *fields), (("metadata", "true"),), method="GET"
    )


def _secret(key: str) -> str:
    if secret := key or os.environ.get("AZURE_CLIENT_SECRET", ""):
        return secret
    raise MissingKey(
        "No key: the application has no secret. Set `api_key_env` to its variable, or AZURE_CLIENT_SECRET."
    )


class EntraTokens(AccessTokens):
    """Access tokens of Microsoft Entra ID.

    Args:
        request: asks for a token.
        http: the shared session.
        clock: for the age of tokens.
    """

    def __init__(self, request: TokenRequest, http: Http, clock: Clock) -> None:
        super().__init__(self._fetch_token, clock)
        self._request, self._http = request, http

    async def _fetch_token(self) -> AccessToken:
        url, fields, headers, file, method = self._request
        if file:
            fields = (*fields, ("client_assertion", await asyncio.to_thread(_read, Path(file))))
        form, body = urlencode(fields), None
        if method == "GET":
            url = f"{url}?{form}"
        else:
            headers, body = (*headers, _FORM), form.encode()
        try:
            answer = await self._http.request(method, url, body=body, headers=dict(headers), timeout=_SECONDS)
        except NetError as error:
            raise ProviderUnavailable(_UNANSWERED) from error
        return _token(answer, self._clock.now())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ProviderUnauthorized("cannot be called: the token of the workload cannot be read") from error


def _token(answer: HttpResponse, now: float) -> AccessToken:
    """Returns the token of an answer, which lives for `expires_in` seconds or `expires_on` a time."""
    try:
        content = answer.json()
        if answer.status == 200:
            lasts = content.get("expires_in")
            ends = now + float(lasts) if lasts else float(content["expires_on"])
            return AccessToken(str(content["access_token"]), ends)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProviderUnavailable(_UNANSWERED) from error
    if answer.status == 429 or answer.status >= 500:
        raise ProviderUnavailable(_UNANSWERED)
    code = content.get("error") if isinstance(content, dict) else None
    suffix = f" ({code})" if isinstance(code, str) else ""
    raise ProviderUnauthorized(f"cannot be called: Microsoft Entra refuses a token{suffix}")
