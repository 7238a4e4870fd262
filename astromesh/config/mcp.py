"""mcp.yaml, kind MCPConfig: servers that offer tools."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astromesh.config.fields import Name, Record, Seconds, Secret
from astromesh.config.head import Manifest, Metadata


class MCPServer(Record):
    """One server: `url` and `headers` for http and sse; `command`, `args`, `env` and `cwd` for stdio."""

    transport: Literal["http", "sse", "stdio"] = Field(
        description="How to reach it: http is streamable HTTP, sse what was there before it."
    )
    url: str = Field("", description="Address of a server over http or sse.")
    headers: dict[str, Secret] = Field(
        default_factory=dict, description="Headers of every request (http, sse); their values are secret."
    )
    command: str = Field("", description="Program of a server over stdio.")
    args: tuple[str, ...] = Field((), description="The program's arguments.")
    env: dict[str, Secret] = Field(
        default_factory=dict,
        description="The program's environment, beside PATH, HOME and their like; values are secret.",
    )
    cwd: str = Field(
        "",
        description="Folder that the program starts in, from the configuration's; absent: our own.",
    )
    forward_identity: bool = Field(False, description="Send the caller's token with each call (http, sse).")
    timeout_seconds: Seconds = Field(30.0, description="Seconds one call may take.")


class MCPSpec(Record):
    servers: dict[Name, MCPServer] = Field(default_factory=dict, description="Servers by name.")


class MCPManifest(Manifest):
    kind: Literal["MCPConfig"]
    metadata: Metadata = Metadata.empty()
    spec: MCPSpec = MCPSpec.empty()
