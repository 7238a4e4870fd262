"""channels.yaml, kind ChannelConfig, and mcp.yaml, kind MCPConfig: messengers and MCP servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astromesh.config.records import Block, Manifest, Metadata, Name, Record, Seconds, Secret


class ChannelBlock(Block):
    """A channel by its name; the other keys are the channel's own."""

    default_agent: Name = Field(description="The agent that answers.")
    agents: dict[str, Name] = Field({}, description="Other agents, by the address that received the message.")
    debounce_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        0, description="Messages of one sender within this time are combined."
    )
    tenant: str = Field("default", min_length=1, description="Tenant of the senders.")
    identity_key: Secret = Field(
        Secret(""), description="Key of the senders' pseudonyms; absent: derived from the channel's secret."
    )
    failure_reply: str = Field(
        "Sorry, something went wrong here. Please try again later.",
        description="Reply after a failure; empty: no reply.",
    )
    lease_seconds: Seconds = Field(
        15.0, description="Seconds after which another process takes over from one that died."
    )


class ChannelSpec(Record):
    channels: dict[Name, ChannelBlock] = Field({}, description="Channels by name, e.g. whatsapp.")


class ChannelManifest(Manifest):
    kind: Literal["ChannelConfig"]
    metadata: Metadata = Metadata.empty()
    spec: ChannelSpec = ChannelSpec.empty()


# -- mcp.yaml ------------------------------------------------------------------------------------------------


class MCPOAuth(Record):
    """How the client gets tokens for a server; `{}` is enough where the server lets clients register."""

    grant: Literal["authorization_code", "client_credentials"] = Field(
        "authorization_code",
        description="authorization_code: `astromesh mcp login` is needed; client_credentials: it is not.",
    )
    client_id: str = Field("", description="Id of a client that is registered; absent: it registers itself.")
    client_secret: Secret = Field(Secret(""), description="Secret of the client.")
    auth_method: Literal["client_secret_basic", "client_secret_post"] = Field(
        "client_secret_basic", description="How the client sends its secret."
    )
    client_metadata_url: str = Field(
        "", description="https URL of the client's metadata document, its id where servers support that."
    )
    issuer: str = Field("", description="The authorization server; only it receives `client_secret`.")
    scope: str = Field("", description="Scopes to request beside those that the server names, with spaces.")
    redirect_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Port of this machine that a login returns to; 0: any."
    )


class MCPServer(Record):
    """One server: `url` and `headers` for http and sse; `command`, `args`, `env` and `cwd` for stdio."""

    transport: Literal["http", "sse", "stdio"] = Field(
        description="http: streamable HTTP; sse: the older HTTP transport; stdio: a child process."
    )
    url: str = Field("", description="Address of a server over http or sse.")
    headers: dict[str, Secret] = Field(
        default_factory=dict, description="Headers of every request (http, sse); their values are secret."
    )
    command: str = Field("", description="Program of a server over stdio.")
    args: tuple[str, ...] = Field((), description="The program's arguments.")
    env: dict[str, Secret] = Field(
        default_factory=dict,
        description="Environment variables added to PATH, HOME and similar ones; their values are secret.",
    )
    cwd: str = Field(
        "",
        description="Working directory, relative to the configuration; absent: that of astromesh.",
    )
    forward_identity: bool = Field(False, description="Send the caller's token with each call (http, sse).")
    timeout_seconds: Seconds = Field(30.0, description="Seconds one call may take.")
    oauth: MCPOAuth | None = Field(None, description="OAuth: how the client gets tokens (http).")


class MCPSpec(Record):
    servers: dict[Name, MCPServer] = Field(default_factory=dict, description="Servers by name.")


class MCPManifest(Manifest):
    kind: Literal["MCPConfig"]
    metadata: Metadata = Metadata.empty()
    spec: MCPSpec = MCPSpec.empty()
