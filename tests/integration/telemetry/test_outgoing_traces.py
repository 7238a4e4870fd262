"""`traceparent` of calls to models, webhooks and MCP servers: they belong to the run's trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from mcp.server.mcpserver import MCPServer as PeerServer

from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.ids import read_traceparent, span_bytes
from tests.integration.agents_folder import client_of, manifest, write
from tests.integration.mcp_servers import serving

TRACE = "ab" * 16
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "hook", "arguments": "{}"}},
    {"id": "c2", "type": "function", "function": {"name": "greet", "arguments": "{}"}},
]


class Services:
    """A model that calls both tools and then answers, and a webhook. `seen` holds traceparents by service."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {"model": [], "hook": [], "mcp": []}

    async def model(self, request: web.Request) -> web.StreamResponse:
        self.seen["model"].append(request.headers.get("traceparent", ""))
        body = await request.json()
        answered = any(message["role"] == "tool" for message in body["messages"])
        message: dict[str, Any] = {"content": "Done."} if answered else {"tool_calls": CALLS}
        finish = "stop" if answered else "tool_calls"
        if not body.get("stream"):
            return web.json_response({"choices": [{"message": message, "finish_reason": finish}]})
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        chunk = json.dumps({"choices": [{"delta": message, "finish_reason": finish}]})
        await answer.write(f"data: {chunk}\n\ndata: [DONE]\n\n".encode())
        return answer

    async def hook(self, request: web.Request) -> web.Response:
        self.seen["hook"].append(request.headers.get("traceparent", ""))
        return web.json_response({"ok": True})

    def peer(self, transport: str) -> Any:
        """An MCP server as an ASGI app; what its calls carry is noted."""
        server = PeerServer("peer")

        @server.tool()
        async def greet() -> str:
            return "hello"

        app = server.sse_app() if transport == "sse" else server.streamable_http_app()

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            headers = dict(scope.get("headers", ()))
            body = b""

            async def hear() -> Any:
                nonlocal body
                message = await receive()
                body += message.get("body", b"")
                whole = message["type"] == "http.request" and not message.get("more_body")
                if whole and b"tools/call" in body:
                    meta = json.loads(body)["params"].get("_meta", {})
                    assert meta.get("traceparent") == headers.get(b"traceparent", b"").decode()
                    self.seen["mcp"].append(meta.get("traceparent", ""))
                return message

            await app(scope, hear if scope["type"] == "http" else receive, send)

        return noted


@asynccontextmanager
async def serving_agent(folder: Path, services: Services, transport: str) -> AsyncIterator[httpx.AsyncClient]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", services.model)
    app.router.add_post("/hook", services.hook)
    async with TestServer(app) as place, serving(services.peer(transport)) as peer:
        model = {"provider": "openai", "model": "m", "endpoint": str(place.make_url("/v1"))}
        tools = [
            {"name": "hook", "type": "webhook", "endpoint": str(place.make_url("/hook")), "method": "POST"},
            {"name": "peer", "type": "mcp", "server": "peer"},
        ]
        url = f"{peer}/{'sse' if transport == 'sse' else 'mcp'}"
        head = {"apiVersion": "astromesh/v1", "kind": "MCPConfig"}
        servers = {"servers": {"peer": {"transport": transport, "url": url}}}
        (write(folder, manifest(model={"primary": model}, tools=tools)) / "mcp.yaml").write_text(
            yaml.safe_dump({**head, "spec": servers})
        )
        runtime = AgentRuntime(folder, data_dir=folder / "data", env={})
        async with client_of(runtime) as client:
            yield client


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("how", ["plain", "streamed", "durable"])
async def test_calls_to_models_webhooks_and_mcp_servers_carry_the_trace(
    tmp_path: Path, transport: str, how: str
) -> None:
    services = Services()
    body = {"query": "Hi", "session_id": "s"}
    headers = {"traceparent": f"00-{TRACE}-{'cd' * 8}-01"}
    async with serving_agent(tmp_path, services, transport) as client:
        if how == "durable":
            accepted = (await client.post("/v1/agents/helper/runs", json=body, headers=headers)).json()
            async with asyncio.timeout(30):
                while (run := (await client.get(f"/v1/runs/{accepted['run_id']}")).json())[
                    "status"
                ] != "completed":
                    await asyncio.sleep(0.02)
            run_id = run["run_id"]
        else:
            accept = {"accept": "text/event-stream"} if how == "streamed" else {}
            answer = await client.post("/v1/agents/helper/run", json=body, headers={**headers, **accept})
            assert answer.status_code == 200, answer.text
            run_id = (await client.get("/v1/runs")).json()["runs"][0]["run_id"]
    spans = {"model": run_id, "hook": f"{run_id}.c1", "mcp": f"{run_id}.c2"}
    assert {name: len(seen) for name, seen in services.seen.items()} == {"model": 2, "hook": 1, "mcp": 1}
    for name, seen in services.seen.items():
        for header in seen:
            parent = read_traceparent(header)
            assert (parent.trace_id, parent.sampled) == (TRACE, True), (name, header)
            assert parent.span_id == span_bytes(spans[name]).hex(), name
