"""`oauth` of a server in mcp.yaml. Importing this module does not import the SDK."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class OAuthOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grant: Literal["authorization_code", "client_credentials"] = Field(
        "authorization_code", description="How to get tokens."
    )
    client_id: str = Field("", description="Id of a registered client.")
    client_secret: SecretStr = Field(SecretStr(""), description="Its secret.")
    auth_method: Literal["client_secret_basic", "client_secret_post"] = Field(
        "client_secret_basic", description="How to send the secret."
    )
    client_metadata_url: str = Field("", description="URL of the client's metadata document.")
    issuer: str = Field("", description="The authorization server.")
    scope: str = Field("", description="Scopes to request beside those that the server names.")
    redirect_port: int = Field(0, ge=0, le=65535, description="Port of the redirect.")
