"""`type: mcp`: the tools of one MCP server, or some of them, and the pinned hashes of their definitions.

A server that changes a description after it was reviewed can mislead a model ("rug pull"). Each definition is
pinned by its hash on disk; a change is logged as a warning. Importing this module does not import the SDK.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import ConfigError
from astromesh.logs import get_logger
from astromesh.plugins import Deps
from astromesh.text import did_you_mean
from astromesh.tools.base import Tool, ToolContext
from astromesh.types import ToolSpec

log = get_logger("astromesh.mcp")


class ToolDefinition(NamedTuple):
    """One tool as its server defines it. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of everything that a model sees of the tool."""
        return sha256(orjson.dumps([*self], option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, eq=False, slots=True)
class ToolDefinitions:
    """One list of tools. Lists are compared by identity, even with equal content."""

    tools: tuple[ToolDefinition, ...] = ()


def changed_tools(before: ToolDefinitions, after: ToolDefinitions) -> tuple[str, ...]:
    """Returns the names of tools that are in both lists and differ."""
    was = {tool.name: tool for tool in before.tools}
    return tuple(tool.name for tool in after.tools if was.get(tool.name, tool) != tool)


class DefinitionPins:
    """The pinned hashes of tool definitions, in a file.

    Args:
        server: name in mcp.yaml.
        file: where they are stored; a file that cannot be read counts as empty.
    """

    def __init__(self, server: str, file: Path) -> None:
        self._server, self._file = server, file
        self._digests: dict[str, str] = _read_pins(file)

    def check(self, found: ToolDefinitions) -> tuple[str, ...]:
        """Returns the names of tools whose definition changed; logs each once and pins it again."""
        now = {tool.name: tool.digest for tool in found.tools}
        changed = tuple(name for name, digest in now.items() if self._digests.get(name, digest) != digest)
        for name in changed:
            log.warning("mcp_tool_changed", server=self._server, tool=name)
        if now.items() - self._digests.items():
            self._digests |= now
            self._write()
        return changed

    def _write(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            draft.write_bytes(orjson.dumps(self._digests, option=orjson.OPT_INDENT_2))
            draft.replace(self._file)
        except OSError as error:  # they stay pinned until this process ends
            log.warning("mcp_pins_not_kept", server=self._server, error=str(error))


def _read_pins(file: Path) -> dict[str, str]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


# -- the tool source -----------------------------------------------------------------------------------------

#: characters that providers reject in a function's name
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64
#: cached lists of tools; callers may have different ones
_MAX_LISTS = 64


class Server(Protocol):
    """The interface of a server; `client.MCPServer` implements it and imports the SDK."""

    name: str
    forwards_identity: bool

    @property
    def over_http(self) -> bool: ...

    def definitions(self, forwards: bool) -> ToolDefinitions: ...

    def fault(self, forwards: bool) -> str: ...

    def for_callers_only(self, forwards: bool) -> bool: ...

    async def prepare(self, forwards: bool) -> None: ...

    async def wait_first_attempt(self) -> None: ...

    async def call(
        self, tool: str, arguments: dict[str, Any], context: ToolContext, forwards: bool
    ) -> Any: ...


class MCPToolset:
    """A `ToolSource`: the tools of a server that the block names."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        server: str = Field(min_length=1, description="Name of the server in mcp.yaml.")
        tools: tuple[str, ...] = Field(
            ("*",), min_length=1, description="Names of its tools; `*` and `?` are wildcards: `list_*`."
        )
        prefix: str = Field(
            "", pattern=r"^[A-Za-z0-9_-]{0,32}$",
            description="Prefix of the names that the model sees, so that tools of two servers differ.",
        )  # fmt: skip
        forward_identity: bool | None = Field(
            None, description="Send the caller's token with each call; absent: the setting of mcp.yaml."
        )

    def __init__(self, options: Options, server: Server) -> None:
        self._server, self._tool_patterns, self._prefix = server, options.tools, options.prefix
        self._forwards = (
            server.forwards_identity if options.forward_identity is None else options.forward_identity
        )
        self._lists: OrderedDict[ToolDefinitions, tuple[Tool, ...]] = OrderedDict()

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> MCPToolset:
        """Raises: ConfigError: the server does not exist, or cannot receive a token."""
        server: Any = deps.servers.get(options.server)
        if server is None:
            hint = did_you_mean(options.server, deps.servers)
            raise ConfigError(f"Unknown MCP server `{options.server}` in mcp.yaml. {hint}".strip())
        if options.forward_identity and not server.over_http:
            raise ConfigError(
                f"forward_identity needs a server over HTTP; `{options.server}` is a child process."
            )
        return cls(options, server)

    def current(self) -> tuple[Tool, ...]:
        found = self._server.definitions(self._forwards)
        if found not in self._lists:
            self._lists[found] = self._tools(found)
            if len(self._lists) > _MAX_LISTS:
                self._lists.popitem(last=False)
        return self._lists[found]

    async def prepare(self) -> None:
        await self._server.prepare(self._forwards)

    @property
    def for_callers_only(self) -> bool:
        return self._server.for_callers_only(self._forwards)

    def missing(self) -> str:
        return self._server.fault(self._forwards)

    async def tools(self) -> Sequence[Tool]:
        await self._server.wait_first_attempt()
        return self.current()

    async def close(self) -> None:
        """Does nothing: the server belongs to all agents and closes with the runtime."""

    def _tools(self, found: ToolDefinitions) -> tuple[Tool, ...]:
        return tuple(
            MCPTool(self._server, definition, self._prefix, self._forwards)
            for definition in found.tools
            if definition.name
            and any(fnmatchcase(definition.name, pattern) for pattern in self._tool_patterns)
        )


class MCPTool:
    """One tool of a server."""

    def __init__(self, server: Server, definition: ToolDefinition, prefix: str, forwards: bool) -> None:
        name, schema = model_name(prefix + definition.name), _object_schema(definition.schema)
        self.spec = ToolSpec(name, definition.description, schema, "external", as_caller=forwards)
        self._server, self._name, self._forwards = server, definition.name, forwards

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return await self._server.call(self._name, arguments, context, self._forwards)


def model_name(name: str) -> str:
    """Returns a tool's name as providers accept it: replaces other characters by `_` and truncates it."""
    return _INVALID_CHARACTERS.sub("_", name)[:_MAX_NAME]


def _object_schema(schema: Any) -> dict[str, Any]:
    """Returns a schema that providers accept: of an object, with properties."""
    return {"properties": {}, **schema, "type": "object"}
