"""`build_agent`: an agent in Python, without a server or a configuration folder (document 000)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, ValidationError

from astromesh.errors import AstromeshError, ConfigError, InvalidGraph, ProviderRejected
from astromesh.graph import prebuilt
from astromesh.graph.base import BaseNode
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.graph import PromptGraph
from astromesh.graph.records import ExecutionReport, GraphResult
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugin, Plugins, Resources
from astromesh.providers.base import ModelPort, Provider
from astromesh.tools.base import ToolPort
from astromesh.tools.toolbox import ToolLike, tool_port
from astromesh.types import CallerContext, CompletionRequest, CompletionResult, Delta, Event, calling_as

ModelFunction: TypeAlias = Callable[[CompletionRequest], Awaitable["CompletionResult | str"]]


ModelLike: TypeAlias = "ModelPort | str | Mapping[str, Any] | ModelFunction"


def as_model(model: ModelLike, plugins: Plugins, resources: Resources) -> ModelPort:
    """Returns the model that an argument names. The first call opens its provider.

    Args:
        model: A Provider or router; `provider:name`, or a block `{provider, model, …}` as in an agent's YAML;
            an async function that takes a CompletionRequest and returns a text or a CompletionResult.
        plugins: Where providers are looked up.
        resources: Closes what is opened.

    Raises:
        UnknownPlugin, MissingExtra: the plugin of the provider cannot be loaded.
        ConfigError: the options of the block are wrong, or the argument has another type.
    """
    if hasattr(model, "complete"):
        return cast("ModelPort", model)
    if isinstance(model, str):
        provider, _, name = model.partition(":")
        return _provider_of_block({"provider": provider, "model": name}, plugins, resources)
    if isinstance(model, Mapping):
        return _provider_of_block(model, plugins, resources)
    if callable(model):
        return FunctionModel(model)
    raise ConfigError(
        f"{model!r} is not a model: pass a Provider, 'provider:name', a block or an async function."
    )


def _provider_of_block(block: Mapping[str, Any], plugins: Plugins, resources: Resources) -> LazyProvider:
    options = {key: value for key, value in block.items() if key != "provider" and value != ""}
    name = block.get("provider", "")
    plugin = plugins.load("providers", name)
    try:
        valid = plugin.Options.model_validate(options)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise ConfigError(f"The model block of {name!r} is wrong: {faults}.") from error
    return LazyProvider(plugin, valid, resources)


class LazyProvider:
    """A provider that its first call opens.

    Args:
        options: The validated options of the plugin.
        resources: Has the shared HTTP session, and closes the provider.
    """

    def __init__(self, plugin: type[Plugin], options: BaseModel, resources: Resources) -> None:
        self._plugin, self._options, self._resources = plugin, options, resources
        self._provider: Provider | None = None
        self._opening = asyncio.Lock()

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        provider = self._provider or await self._open()
        return await provider.complete(request)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        provider = self._provider or await self._open()
        async with aclosing(provider.stream(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece

    async def _open(self) -> Provider:
        async with self._opening:
            if self._provider is None:
                deps = replace(Deps(resources=self._resources), http=await self._resources.shared(Http, Http))
                opened: Provider = await self._plugin.open(self._options, deps)
                self._resources.on_close(opened.close)
                self._provider = opened
        return self._provider


class FunctionModel:
    """A model that calls a function.

    Args:
        function: Takes a CompletionRequest; returns a text or a CompletionResult, or a coroutine of one.
    """

    def __init__(self, function: Callable[[CompletionRequest], Any]) -> None:
        self._function = function

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        result = self._function(request)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, str):
            return CompletionResult(result)
        if isinstance(result, CompletionResult):
            return result
        raise ProviderRejected(
            f"The model function returned {result!r}, neither a text nor a CompletionResult."
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result


# -- agents --------------------------------------------------------------------------------------------------

Prebuilt = Literal["react", "plan_and_execute", "deliberate", "debate", "reasoning_controller"]
Pattern: TypeAlias = "Prebuilt | PromptGraph | None"
Servers: TypeAlias = "Mapping[str, Mapping[str, Any]] | None"
#: group and name of the plugin for MCP servers
_MCP = ("tool_sources", "mcp")
PATTERNS: Mapping[str, Callable[[], PromptGraph]] = {
    "react": prebuilt.react,
    "plan_and_execute": prebuilt.plan_and_execute,
    "deliberate": prebuilt.deliberate,
    "debate": prebuilt.debate,
    "reasoning_controller": prebuilt.reasoning_controller,
}


class Agent:
    """A graph with its model and tools.

    The first call connects, or `await agent`; `close` or `async with` closes the connections.
    """

    def __init__(
        self, graph: PromptGraph, model: Any, tools: ToolPort | Sequence[ToolLike], parts: _Parts
    ) -> None:
        self.graph = graph
        self._model, self._tools, self._parts = model, tools, parts
        self._engine: PromptGraphEngine | None = None
        self._opening = asyncio.Lock()

    async def ainvoke(
        self, input: Any, *, caller: CallerContext | None = None, context: dict[str, Any] | None = None
    ) -> GraphResult:
        """Executes the agent once and returns its result.

        Args:
            input: A text, a list of messages, or `{"messages": […]}`.
            caller: The caller as tools see it. MCP servers receive its token.
            context: Values in the context of the graph's nodes.

        Raises:
            InvalidGraph: the graph cannot run. Every other failure is in the report of the result.
        """
        try:
            engine = await self._open(caller)
            return await engine.ainvoke(input, context=context, caller=caller)
        except InvalidGraph:
            raise
        except AstromeshError as error:
            return _failed_result(error)

    async def astream_events(
        self, input: Any, *, caller: CallerContext | None = None, context: dict[str, Any] | None = None
    ) -> AsyncIterator[Event]:
        """Executes the agent once and yields the events as they happen."""
        engine = await self._open(caller)
        async for event in engine.astream_events(input, context=context, caller=caller):
            yield event

    async def close(self) -> None:
        await self._parts.resources.close()

    async def __aenter__(self) -> Self:
        await self._parts.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def _open(self, caller: CallerContext | None = None) -> PromptGraphEngine:
        async with self._opening:
            if self._engine is None:
                await self._parts.connect()
                with calling_as(caller):  # some servers list their tools to callers only
                    tools = await self._parts.with_servers(self._tools)
                self._engine = PromptGraphEngine(self.graph, self._model, tools=tools)
        return self._engine


class _Parts:
    """The objects that an agent opens: plugins, resources, servers."""

    def __init__(self, plugins: Plugins, servers: Servers) -> None:
        self.plugins, self.servers = plugins, servers or {}
        self.resources = Resources()
        self._sources: dict[str, Any] = {}
        if self.servers:
            plugins.load(*_MCP)  # a missing package is reported here rather than by the first call

    async def connect(self) -> None:
        """Opens the servers that are not open yet. They connect in the background."""
        for name in self.servers.keys() - self._sources.keys():
            deps = Deps(resources=self.resources, http=await self.resources.shared(Http, Http))
            block = {"name": name, **self.servers[name]}
            try:
                self._sources[name] = source = await self.plugins.open(*_MCP, block, deps)
            except ValidationError as error:
                raise ConfigError(f"The block of the MCP server {name!r} is not valid: {error}") from error
            self.resources.on_close(source.close)

    async def with_servers(self, tools: ToolPort | Sequence[ToolLike]) -> ToolPort:
        if not self.servers:
            return tool_port(tools)
        if not isinstance(tools, list | tuple):
            raise ConfigError("`servers` needs a list of tools, not a ToolPort.")
        found: list[ToolLike] = list(tools)
        for name in self.servers:
            found.extend(await self._sources[name].tools())
        return tool_port(found)


def build_agent(
    model: ModelLike,
    *,
    servers: Servers = None,
    tools: ToolPort | Iterable[ToolLike] | None = None,
    pattern: Pattern = None,
    node_pool: Iterable[BaseNode] | None = None,
    plugins: Plugins | None = None,
) -> Agent:
    """Returns an agent of a model, tools and a graph.

    Args:
        model: A Provider, `provider:name`, a YAML model block `{provider, model, …}`, or an async function
            that takes a CompletionRequest.
        servers: MCP servers by name, each a block as in mcp.yaml.
        tools: A ToolPort, or tools and Python functions with type hints.
        pattern: A graph, or the name of a prebuilt one. None: `react`.
        node_pool: Nodes from which the model builds its own path, instead of a pattern.
        plugins: Where providers and servers are looked up. None: everything installed.

    Raises:
        UnknownPlugin, MissingExtra: the provider of the model, or support for MCP servers, is not installed.
        ConfigError: the model block is wrong, or two arguments exclude each other.
        InvalidGraph: the graph cannot run.
    """
    parts = _Parts(plugins or Plugins(), servers)
    graph = _graph(pattern, node_pool)
    if problems := graph.validate():
        raise InvalidGraph(problems)
    listed: Any = tools if hasattr(tools, "execute") else list(tools or ())
    return Agent(graph, as_model(model, parts.plugins, parts.resources), listed, parts)


def _graph(pattern: Pattern, pool: Iterable[BaseNode] | None) -> PromptGraph:
    if pool is not None:
        if pattern is not None:
            raise ConfigError("Pass a pattern or a node_pool, not both.")
        return prebuilt.autonomous(pool)
    if isinstance(pattern, PromptGraph):
        return pattern
    name = pattern or "react"
    if name not in PATTERNS:
        raise ConfigError(f"There is no prebuilt graph {name!r}. Known: {', '.join(PATTERNS)}.")
    return PATTERNS[name]()


def _failed_result(error: AstromeshError) -> GraphResult:
    return GraphResult([], None, {}, ExecutionReport([], stop_reason="critical_error", error=str(error)))
