"""Tool schemas and right calls that others have written arrive unchanged (docs/tools.md, Berkeley).

Nothing but the model is a stand-in: it speaks the format of a service and says the right calls. `make test`
takes every 20th entry, `make reliability` all of them (`ASTROMESH_BFCL=1`).
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.server import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as ServedTool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from astromesh.runtime.engine import AgentRuntime
from astromesh.tools.mcp.toolset import model_name
from tests.integration.agents_folder import client_of, manifest
from tests.integration.mcp_servers import mcp_yaml, serving, until
from tests.platform.bfcl import Batch, Suite, read_suite
from tests.platform.model_server import Call, ModelServer, Scenario, Seen

pytestmark = pytest.mark.timeout(1200)  # all entries
EVERY = int(os.environ.get("ASTROMESH_BFCL", "20"))
#: calls in one answer of the model
CALLS = 32
#: a run whose answers come whole, and one whose answers are streamed
KINDS = ("application/json", "text/event-stream")
BASES = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta", "ollama": ""}
SCHEMAS: dict[str, Callable[[Seen], dict[str, Any]]] = {
    "openai": lambda seen: {t["function"]["name"]: t["function"]["parameters"] for t in seen.body["tools"]},
    "anthropic": lambda seen: {t["name"]: t["input_schema"] for t in seen.body["tools"]},
    "gemini": lambda seen: {
        t["name"]: t["parametersJsonSchema"] for t in seen.body["tools"][0]["functionDeclarations"]
    },
}
SCHEMAS["ollama"] = SCHEMAS["openai"]
Arrived = list[tuple[str, Any]]


@cache
def suite() -> Suite:
    return read_suite(EVERY)


def canonical(value: Any) -> str:
    """1, 1.0 and true are three texts."""
    return json.dumps(value, sort_keys=True)


@asynccontextmanager
async def webhook(arrived: Arrived) -> AsyncIterator[str]:
    """The URL of tools; the last part of a path is the tool's own name."""

    async def called(request: Request) -> JSONResponse:
        arrived.append((request.path_params["name"], await request.json()))
        return JSONResponse("done")

    async with serving(Starlette(routes=[Route("/{name}", called, methods=["POST"])])) as url:
        yield url


@asynccontextmanager
async def mcp_server(batch: Batch, arrived: Arrived) -> AsyncIterator[str]:
    """The URL of an MCP server with the tools of a batch under their own names."""

    async def listed(*_: Any) -> ListToolsResult:
        tools = (
            ServedTool(name=one.name, description=one.description, input_schema=one.parameters)
            for one in batch.tools.values()
        )
        return ListToolsResult(tools=[*tools])

    async def called(_: Any, call: Any) -> CallToolResult:
        arrived.append((call.name, call.arguments))
        return CallToolResult(content=[TextContent(type="text", text="done")])

    schemas = {one.name: one.parameters for one in batch.tools.values()}
    server: Server[Any] = Server(
        "bfcl", on_list_tools=listed, on_call_tool=called, get_tool_input_schema=schemas.get
    )
    async with serving(server.streamable_http_app()) as url:
        yield f"{url}/mcp"


def write(folder: Path, *agents: dict[str, Any]) -> Path:
    """Writes agents as JSON, which is YAML, too, and written faster."""
    (folder / "agents").mkdir(parents=True)
    for one in agents:
        (folder / "agents" / f"{one['metadata']['name']}.agent.yaml").write_text(json.dumps(one))
    return folder


def agent(name: str, model: ModelServer, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An agent whose requests choose the service."""
    models = [
        {"provider": wire, "model": "m-1", "endpoint": model.url + base, "api_key": "k"}
        for wire, base in BASES.items()
    ]
    chain = {"primary": models[0], "fallback": models[1:]}
    return manifest(name, model=chain, overridable=["model"], tools=[*tools])


async def says(
    client: httpx.AsyncClient, name: str, wire: str, accepts: str, world: tuple[ModelServer, Batch, Arrived]
) -> None:
    """Lets the model make the right calls of a batch, and looks what arrives."""
    model, batch, arrived = world
    schemas = {name: canonical(tool.parameters) for name, tool in batch.tools.items()}
    body = {"query": "Do it.", "session_id": "s", "model": f"{wire}/m-1"}
    for start in range(0, len(batch.calls), CALLS):
        calls = batch.calls[start : start + CALLS]
        arrived.clear()
        model.seen.clear()
        said = [Call(f"c{n}", model_name(one.name), one.arguments) for n, one in enumerate(calls)]
        model.script = [Scenario(calls=tuple(said), pieces=()), Scenario()]
        answer = await client.post(f"/v1/agents/{name}/run", json=body, headers={"accept": accepts})
        assert answer.status_code == 200, answer.text
        first, second = model.seen
        assert {name: canonical(one) for name, one in SCHEMAS[wire](first).items()} == schemas
        assert canonical(second.calls) == canonical([[one.name, one.arguments] for one in said])
        for call, result in zip(calls, second.results, strict=True):
            assert ("are not valid" in result) if call.faults else result == "done", call
        right = sorted((one.name, canonical(one.arguments)) for one in calls if not one.faults)
        assert sorted((name, canonical(arguments)) for name, arguments in arrived) == right


async def test_calls_arrive_at_tools_of_yaml(tmp_path: Path) -> None:
    """In each format of a service, in whole answers and in streams."""
    arrived: Arrived = []
    async with ModelServer() as model, webhook(arrived) as url:
        agents = [
            agent(
                f"batch-{n}",
                model,
                [
                    {
                        "name": name,
                        "type": "webhook",
                        "endpoint": f"{url}/{tool.name}",
                        "description": tool.description,
                        "parameters": tool.parameters,
                    }
                    for name, tool in batch.tools.items()
                ],
            )
            for n, batch in enumerate(suite().batches)
        ]
        async with client_of(AgentRuntime(write(tmp_path, *agents), data_dir=tmp_path / "data")) as client:
            for n, batch in enumerate(suite().batches):
                for wire, accepts in product(BASES, KINDS):
                    await says(client, f"batch-{n}", wire, accepts, (model, batch, arrived))


async def test_calls_arrive_at_tools_of_mcp_servers(tmp_path: Path) -> None:
    """Names with dots are the server's own names again."""
    batches, arrived = suite().batches, Arrived()
    async with AsyncExitStack() as open_servers, ModelServer() as model:
        urls = [await open_servers.enter_async_context(mcp_server(one, arrived)) for one in batches]
        tools = [{"name": "peer", "type": "mcp", "server": f"peer-{n}"} for n in range(len(batches))]
        write(tmp_path, *(agent(f"batch-{n}", model, [tool]) for n, tool in enumerate(tools)))
        mcp_yaml(tmp_path, **{f"peer-{n}": {"transport": "http", "url": url} for n, url in enumerate(urls)})
        runtime = AgentRuntime(tmp_path, data_dir=tmp_path / "data")
        async with client_of(runtime) as client:
            for n, batch in enumerate(batches):
                await until(runtime.agent(f"batch-{n}").tools.specs)  # it is connected
                await says(client, f"batch-{n}", "openai", KINDS[0], (model, batch, arrived))


def test_calls_that_do_not_fit_are_known() -> None:
    """All others are right: a change of this number is a change of the data, or of how schemas are read."""
    found = suite()
    assert found.entries == -(-2501 // EVERY)
    if EVERY == 1:
        assert (found.schemas, len(found.calls)) == (6376, 3302)
        assert sum(bool(call.faults) for call in found.calls) == 37
