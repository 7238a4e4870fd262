"""One suite for every kind of tool: opened by its YAML name, bound by the registry, called as in a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from astromesh.config.agent import ToolBlock
from astromesh.core.prompt_engine import compile_transform
from astromesh.core.tools import AgentTools, ToolRegistry, declare_source, declare_tool
from astromesh.errors import ToolFailed
from astromesh.knowledge.base import Chunk, IngestReport, ListedDocument, Passage, StoredDocument
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, ToolContext
from astromesh.tools.mcp.server import MCPService
from astromesh.types import SessionKey, ToolCall, ToolSpec
from tests.integration.mcp_servers import serving as served

KINDS = ["internal", "webhook", "rag", "agent", "mcp"]
CONTEXT = ToolContext(
    run_id="run_1", call_id="c1", agent="bot", session=SessionKey("t", "bot", "s"), tool="lookup"
)
PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
    "additionalProperties": False,
}

Behaviour = Callable[[str], Awaitable[Any]]


@dataclass
class Far:
    """What stands behind a tool: the function, the endpoint, the index, the other agent."""

    behave: Behaviour
    asked: list[str] = field(default_factory=list)
    contexts: list[Mapping[str, Any]] = field(default_factory=list)

    async def __call__(self, query: str) -> Any:
        self.asked.append(query)
        return await self.behave(query)


FAR: list[Far] = []


async def looked_up(query: str) -> Any:
    """Looks something up."""
    return await FAR[-1](query)


class FarKnowledge:
    """A `KnowledgePipeline` whose one passage is what stands behind it."""

    name = "far"

    def __init__(self, far: Far) -> None:
        self._far = far

    async def query(
        self,
        query: str,
        *,
        tenant: str = "default",
        top_k: int | None = None,
        filters: Mapping[str, Any] | None = None,
    ) -> tuple[Passage, ...]:
        return (Passage(Chunk("far.md", str(await self._far(query)), 0, 1, "Far"), 1.0),)

    async def documents(self, **_: Any) -> tuple[ListedDocument, ...]:
        return ()

    async def document(self, name: str, *, tenant: str = "default") -> StoredDocument | None:
        return None

    async def ingest(self, documents: Any, progress: Any = None, *, tenant: str = "default") -> IngestReport:
        return IngestReport(unchanged=len(documents))

    async def ingest_path(self, path: Any, progress: Any = None, *, tenant: str = "default") -> IngestReport:
        return IngestReport()

    async def remove(self, ids: Any, *, tenant: str = "default") -> IngestReport:
        return IngestReport(removed=len(ids))

    async def refresh(self, progress: Any = None, *, load_model: bool = True) -> IngestReport:
        return IngestReport()

    async def embed_again(self, progress: Any = None) -> IngestReport:
        return IngestReport()

    async def warning(self, *, tenant: str | None = None) -> str:
        return ""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def opened(kind: str, far: Far, **block: Any) -> AsyncIterator[AgentTools]:
    """An agent whose one tool is of this kind; `far` answers it."""
    if kind == "mcp":
        async with of_a_server(far, block) as tools:
            yield tools
        return

    async def endpoint(request: web.Request) -> web.Response:
        try:
            return web.json_response(await far((await request.json())["query"]))
        except RuntimeError as error:
            return web.Response(status=500, text=str(error))

    async def run_agent(
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        far.contexts.append(context)
        return {"response": await far(query), "agent": agent}

    app = web.Application()
    app.router.add_post("/", endpoint)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    own: dict[str, dict[str, Any]] = {
        "internal": {"function": f"{__name__}:looked_up"},
        "webhook": {"endpoint": f"http://127.0.0.1:{runner.addresses[0][1]}/"},
        "rag": {"pipeline": "far"},
        "agent": {"agent": "far"},
    }
    FAR.append(far)
    async with Http() as http:
        deps = Deps(
            http=http,
            knowledge={"far": FarKnowledge(far)},
            run_agent=run_agent,
            compile_transform=compile_transform,
        )
        tool = await Plugins().open("tools", kind, own[kind], deps)
        shared = {"name": "lookup", "type": kind, "parameters": PARAMETERS, "timeout_seconds": 60.0}
        yield ToolRegistry().bind("bot", [declare_tool(tool, ToolBlock.model_validate({**shared, **block}))])
    FAR.pop()
    await runner.cleanup()


@asynccontextmanager
async def of_a_server(far: Far, block: Mapping[str, Any]) -> AsyncIterator[AgentTools]:
    """An agent with the tool of an MCP server, over real HTTP."""

    async def answer(request: Any, tool: str, arguments: dict[str, Any], report: Any) -> Any:
        try:
            return await far(arguments["query"])
        except RuntimeError as error:
            raise ToolFailed(str(error)) from error

    spec = ToolSpec("lookup", "Looks things up.", PARAMETERS)
    serving = MCPService("far", "1", lambda request: [spec], answer)
    await serving.open()
    async with served(serving) as url, Http() as http:
        server = await Plugins().open(
            "tool_sources", "mcp", {"name": "far", "transport": "http", "url": url}, Deps(http=http)
        )
        source = await Plugins().open("tools", "mcp", {"server": "far"}, Deps(servers={"far": server}))
        await source.tools()
        shared = {"name": "far", "type": "mcp", "timeout_seconds": 60.0, **block}
        yield ToolRegistry().bind("bot", [declare_source(source, ToolBlock.model_validate(shared))])
        await server.close()
    await serving.close()


async def call(tools: AgentTools, arguments: str = '{"query": "x"}', name: str = "lookup"):
    return await tools.execute(ToolCall("c1", name, arguments), CONTEXT)


async def answers(query: str) -> str:
    return f"the answer to {query}"


pytestmark = pytest.mark.parametrize("kind", KINDS)


async def test_the_model_sees_the_declared_name_and_schema(kind):
    """Whatever a kind calls itself, YAML's words are what the model gets."""
    async with opened(kind, Far(answers), description="Looks things up.") as tools:
        (spec,) = tools.specs()
    assert (spec.name, spec.description, spec.parameters) == ("lookup", "Looks things up.", PARAMETERS)
    assert spec.effect == ("read" if kind in ("internal", "rag") else "external")


async def test_a_call_reaches_what_stands_behind_and_its_answer_comes_back(kind):
    """One call out, one result in."""
    far = Far(answers)
    async with opened(kind, far) as tools:
        result = await call(tools)
    assert (result.ok, result.call_id, result.name, result.error) == (True, "c1", "lookup", "")
    assert "the answer to x" in result.content
    assert far.asked == ["x"]


@pytest.mark.parametrize("arguments", ["{", "[]", "{}", '{"query": 1}', '{"query": "x", "more": 1}'])
async def test_arguments_that_do_not_fit_never_reach_it(kind, arguments):
    """The corrective result says so instead."""
    far = Far(answers)
    async with opened(kind, far) as tools:
        result = await call(tools, arguments)
    assert (result.ok, result.error, far.asked) == (False, "invalid_tool_call", [])


async def test_a_fault_behind_it_is_a_failed_result_with_its_reason(kind):
    """The run goes on, the model is told."""

    async def fails(query: str) -> Any:
        raise RuntimeError("the shelf is empty")

    async with opened(kind, Far(fails)) as tools:
        result = await call(tools)
    assert (result.ok, result.error) == (False, "tool_failed")
    assert "the shelf is empty" in result.content


async def test_a_fault_is_told_without_what_looks_like_a_secret(kind):
    """Whatever kind of tool says it, and whatever it says besides."""

    async def fails(query: str) -> Any:
        raise RuntimeError("401 for key sk-abcdefghijklmnopqrstuvwxyz123456 of https://me:hunter22@far/")

    async with opened(kind, Far(fails)) as tools:
        result = await call(tools)
    assert result.error == "tool_failed"
    assert "401 for key sk-*** of https://me:***@far/" in result.content


async def test_a_call_that_hangs_is_given_up(kind):
    """Its time is over, and what runs in this process is cancelled."""
    cancelled = asyncio.Event()

    async def hangs(query: str) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with opened(kind, Far(hangs), timeout_seconds=0.1) as tools:
        result = await call(tools)
        if kind not in ("webhook", "mcp"):  # what is far away is another process's affair
            assert cancelled.is_set()
    assert (result.ok, result.error) == (False, "tool_timeout")


async def test_a_cancelled_run_cancels_the_call(kind):
    """Cancellation is no result."""
    started = asyncio.Event()

    async def hangs(query: str) -> Any:
        started.set()
        await asyncio.Event().wait()

    async with opened(kind, Far(hangs)) as tools:
        task = asyncio.create_task(call(tools))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_hundred_calls_at_once_keep_their_own_answers(kind):
    """Nothing of a call is kept in the tool."""

    async def later(query: str) -> str:
        await asyncio.sleep(0.001 * (int(query) % 7))
        return f"[{query}]"

    async with opened(kind, Far(later)) as tools:
        results = await asyncio.gather(*(call(tools, f'{{"query": "{n}"}}') for n in range(100)))
    assert all(f"[{n}]" in result.content for n, result in enumerate(results))


async def test_unknown_options_are_refused(kind):
    """A typo in YAML is found at load."""
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Plugins().options("tools", kind).model_validate({"nope": 1})
