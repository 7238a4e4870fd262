"""`type: mcp`: the tools of one server, or some of them, as an agent declares them."""

from __future__ import annotations

import difflib
import re
from collections import OrderedDict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.tool import Tool, ToolContext
from astromesh.errors import ConfigError
from astromesh.mcp.definitions import Definition, Definitions
from astromesh.types import ToolSpec

#: what models' providers accept in a function's name
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 64
#: lists that are kept as tools: of callers who are offered different ones
_LISTS = 64


class Server(Protocol):
    """What of a server is needed here; `astromesh.mcp.client.MCPServer` is one, and loads the SDK."""

    name: str
    forwards: bool

    @property
    def over_http(self) -> bool: ...

    def definitions(self, forwards: bool) -> Definitions: ...

    def fault(self, forwards: bool) -> str: ...

    def for_callers_only(self, forwards: bool) -> bool: ...

    async def prepare(self, forwards: bool) -> None: ...

    async def settled(self) -> None: ...

    async def call(
        self, tool: str, arguments: dict[str, Any], context: ToolContext, forwards: bool
    ) -> Any: ...


class MCPTools:
    """A `ToolSource`: those of a server's tools that the block names."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        server: str = Field(min_length=1, description="Name of the server in mcp.yaml.")
        tools: tuple[str, ...] = Field(
            ("*",), min_length=1, description="Names of its tools; `*` and `?` stand for others: `list_*`."
        )
        prefix: str = Field(
            "", pattern=r"^[A-Za-z0-9_-]{0,32}$",
            description="Put before the names that the model sees, so that those of two servers differ.",
        )  # fmt: skip
        forward_identity: bool | None = Field(
            None, description="Send the caller's token with each call; absent: as mcp.yaml says."
        )

    def __init__(self, options: Options, server: Server) -> None:
        self._server, self._wanted, self._prefix = server, options.tools, options.prefix
        self._forwards = server.forwards if options.forward_identity is None else options.forward_identity
        self._lists: OrderedDict[Definitions, tuple[Tool, ...]] = OrderedDict()

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> MCPTools:
        """Raises: ConfigError: there is no such server, or it cannot be sent a token."""
        server: Any = deps.servers.get(options.server)
        if server is None:
            near = difflib.get_close_matches(options.server, deps.servers, 1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"There is no MCP server {options.server!r} in mcp.yaml.{guess}")
        if options.forward_identity and not server.over_http:
            raise ConfigError(f"A token goes over http, not to the child process {options.server!r}.")
        return cls(options, server)

    def current(self) -> tuple[Tool, ...]:
        found = self._server.definitions(self._forwards)
        if found not in self._lists:
            self._lists[found] = self._tools(found)
            if len(self._lists) > _LISTS:
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
        await self._server.settled()
        return self.current()

    async def close(self) -> None:
        """The server belongs to all agents, and closes with the runtime."""

    def _tools(self, found: Definitions) -> tuple[Tool, ...]:
        return tuple(
            MCPTool(self._server, definition, self._prefix, self._forwards)
            for definition in found.tools
            if definition.name and any(fnmatchcase(definition.name, wanted) for wanted in self._wanted)
        )


class MCPTool:
    """One tool of a server."""

    def __init__(self, server: Server, definition: Definition, prefix: str, forwards: bool) -> None:
        name, schema = model_name(prefix + definition.name), _object(definition.schema)
        self.spec = ToolSpec(name, definition.description, schema, "external", as_caller=forwards)
        self._server, self._name, self._forwards = server, definition.name, forwards

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return await self._server.call(self._name, arguments, context, self._forwards)


def model_name(name: str) -> str:
    """A tool's name as providers accept it: other characters become `_`, the rest is cut off."""
    return _FOREIGN.sub("_", name)[:_LONGEST]


def _object(schema: Any) -> dict[str, Any]:
    """A schema that providers accept: of an object, with properties."""
    return {"properties": {}, **schema, "type": "object"}
