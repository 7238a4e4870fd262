"""What the conformance suite of MCP is run against: a tool server, and the client with what it is to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import orjson
from mcp_types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents
from pydantic import BaseModel

from astromesh.errors import ToolError, ToolFailed
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.tools.base import ToolContext
from astromesh.tools.mcp.client import MCPServer
from astromesh.tools.mcp.oauth import OAuthOptions
from astromesh.tools.mcp.server import ToolServer
from astromesh.types import JsonObject

#: one white pixel, and a sound of no length
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
_SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
#: of the client, as the suite knows it
_METADATA = "https://conformance-test.local/client-metadata.json"
_TEXT = TextContent(type="text", text="Beside it, a text.")
_IMAGE = ImageContent(type="image", data=_PIXEL, mime_type="image/png")
_RESOURCE = EmbeddedResource(
    type="resource",
    resource=TextResourceContents(uri="test://resource", mime_type="text/plain", text="A resource."),
)


class Address(BaseModel):
    street: str
    city: str


def tool_server() -> ToolServer:
    """The tools that the suite asks for."""
    server = ToolServer("conformance")

    @server.tool()
    def test_simple_text() -> str:
        """A text."""
        return "This is a simple text response for testing."

    @server.tool()
    def test_image_content() -> ImageContent:
        """A picture."""
        return _IMAGE

    @server.tool()
    def test_audio_content() -> AudioContent:
        """A sound."""
        return AudioContent(type="audio", data=_SILENCE, mime_type="audio/wav")

    @server.tool()
    def test_embedded_resource() -> EmbeddedResource:
        """A resource."""
        return _RESOURCE

    @server.tool()
    def test_multiple_content_types() -> list[Any]:
        """All of it."""
        return [_TEXT, _IMAGE, _RESOURCE]

    @server.tool()
    def test_error_handling() -> str:
        """Fails."""
        raise ToolFailed("This tool intentionally returns an error for testing")

    return server


# -- the client ----------------------------------------------------------------------------------------------


async def play(url: str, context: JsonObject, folder: Path, scenario: str = "") -> None:
    """Uses a server of the suite as an agent would: lists its tools and calls those that the scenario names.

    Where it names none, each is called once with arguments that fit.
    """
    async with Http(allow_hosts=("localhost", "127.0.0.1")) as http:
        oauth = _oauth(context) if scenario.startswith("auth/") else None
        seconds = 60 if oauth is not None else 10  # many logins run at the same time
        options = MCPServer.Options(
            name="suite", transport="http", url=url, timeout_seconds=seconds, oauth=oauth
        )
        deps = Deps(http=http, data_dir=folder, config_dir=folder)
        if oauth is not None:
            await _play_logins(options, deps)
            return
        server = await MCPServer.open(options, deps)
        try:
            await server.tools()
            for call in context.get("toolCalls") or _calls(server):
                await _call(server, call["name"], call["arguments"])
        finally:
            await server.close()


def _oauth(context: JsonObject) -> OAuthOptions:
    known = {key: context[key] for key in ("client_id", "client_secret", "issuer") if key in context}
    grant = "client_credentials" if "client-credentials" in context.get("name", "") else "authorization_code"
    return OAuthOptions.model_validate({"client_metadata_url": _METADATA, "grant": grant, **known})


class _Clicks:
    """A browser whose user agrees at once."""

    redirect_uri = "http://127.0.0.1:3000/callback"

    async def authorize(self, url: str) -> str:
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            return (await client.get(url)).headers["location"]


async def _play_logins(options: MCPServer.Options, deps: Deps) -> None:
    """Uses the server as its agents do; when an error names `astromesh mcp login`, the user logs in."""
    for _ in range(3):
        server = await MCPServer.open(options, deps)
        try:
            await server.tools()
            for call in _calls(server):
                await server.call(call["name"], call["arguments"], ToolContext(tool=call["name"]), False)
            return
        except ToolError as error:
            if "astromesh mcp login suite" not in str(error):
                return
        finally:
            await server.close()
        try:
            await MCPServer.login_of(options, deps).login(_Clicks())
        except ToolError:  # the suite judges where the client stops
            return


def _calls(server: MCPServer) -> list[JsonObject]:
    tools = {tool.name: dict(tool.schema) for tool in server.definitions(False).tools}
    if "json_schema_echo" in tools:  # is to be told what became of the schema of another tool
        seen = tools["json_schema_2020_12_tool"]
        return [{"name": "json_schema_echo", "arguments": {"schema": orjson.loads(orjson.dumps(seen))}}]
    return [{"name": name, "arguments": _fitting(schema)} for name, schema in tools.items()]


_VALUES = {"number": 2, "integer": 2, "string": "x", "boolean": True, "object": {}, "array": []}


def _fitting(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties", {})
    return {name: _VALUES.get(one.get("type"), "x") for name, one in properties.items()}


async def _call(server: MCPServer, name: str, arguments: JsonObject) -> None:
    try:
        await server.call(name, arguments, ToolContext(tool=name), False)
    except ToolError:  # the suite judges what was sent, not what came back
        return
