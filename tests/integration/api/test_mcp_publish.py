"""`/mcp`: the runtime's agents as MCP tools, for who may run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from astromesh.api.app import create_app
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.mcp_servers import mcp_yaml, serving
from tests.unit.access.tokens import AUDIENCE, ISSUER, SECRET, claims, signed


def token(scope: str, sub: str = "alice") -> str:
    return signed(claims(2e9, sub=sub, exp=3e9, iat=None, scope=scope))


@asynccontextmanager
async def session(url: str, bearer: str) -> AsyncIterator[Any]:
    headers = {"authorization": f"Bearer {bearer}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


def server(folder: Path, provider: ScriptedProvider) -> Any:
    auth = {"mode": "jwt", "jwt": {"issuer": ISSUER, "audience": AUDIENCE, "secret_env": "S"}}
    whole = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": {"auth": auth}}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(whole))
    memory = {"conversational": {"backend": "in_memory"}}
    write(folder, manifest("helper", memory=memory), manifest("boss", memory=memory))
    return create_app(runtime_of(folder, provider, env={"S": SECRET}))


async def test_a_caller_sees_and_runs_the_agents_of_its_scopes_and_no_others(tmp_path: Path) -> None:
    async with serving(server(tmp_path, ScriptedProvider("fine", repeat=True))) as url:
        async with session(url, token("agents:run:helper")) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]
            done = await client.call_tool("helper", {"query": "hi"})
            assert (done.is_error, done.content[0].text) == (False, "fine")
            for name in ("boss", "nobody"):
                refused = await client.call_tool(name, {"query": "hi"})
                assert refused.is_error
                assert "agents:run" in refused.content[0].text
        async with session(url, token("agents:run")) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["boss", "helper"]
            wrong = [
                {},
                {"query": ""},
                {"query": 5},
                {"query": "x", "more": 1},
                {"query": "x", "session_id": 5},
                {"query": "x" * 100_001},
                {"query": "x", "session_id": "s" * 257},
                {"query": "x", "session_id": "a\x00b"},
                {"query": "x", "context": {"a": 1}},
            ]
            for arguments in wrong:
                assert (await client.call_tool("helper", arguments)).is_error


async def test_without_a_token_or_scope_nothing_of_it_is_served(tmp_path: Path) -> None:
    async with serving(server(tmp_path, ScriptedProvider())) as url, httpx2.AsyncClient() as http:
        assert (await http.post(f"{url}/mcp")).status_code == 401
        weak = {"authorization": f"Bearer {token('agents:read')}"}
        assert (await http.post(f"{url}/mcp", headers=weak)).status_code == 403
        for method in ("GET", "DELETE"):
            assert (await http.request(method, f"{url}/mcp", headers=weak)).status_code == 405


async def test_a_session_goes_on_and_belongs_to_its_caller(tmp_path: Path) -> None:
    model = ScriptedProvider("fine", repeat=True)
    async with serving(server(tmp_path, model)) as url:
        async with session(url, token("agents:run")) as client:
            for _ in range(2):
                await client.call_tool("helper", {"query": "hi", "session_id": "s"})
            await client.call_tool("helper", {"query": "hi"})
        async with session(url, token("agents:run", "bob")) as client:
            other = await client.call_tool("helper", {"query": "hi", "session_id": "s"})
    assert [len(request.messages) for request in model.requests[:3]] == [2, 4, 2]
    assert other.is_error


async def test_one_runtime_uses_the_agents_of_another(tmp_path: Path) -> None:
    """Client and server of this project, over real HTTP, with the caller's token all the way."""
    near, far = tmp_path / "near", tmp_path / "far"
    far.mkdir()
    async with serving(server(far, ScriptedProvider("from afar", repeat=True))) as url:
        servers = {"far": {"transport": "http", "url": f"{url}/mcp", "forward_identity": True}}
        near.mkdir()

        def asks(request: Any) -> Any:
            last = request.messages[-1]
            if last.role == "tool":
                return last.content
            return [ToolCall("1", "far_helper", '{"query": "hi"}')]

        tools = [{"name": "far", "type": "mcp", "server": "far", "prefix": "far_"}]
        write(near, manifest("asker", tools=tools))
        mcp_yaml(near, **servers)
        runtime = runtime_of(near, ScriptedProvider(asks, repeat=True))
        async with runtime:
            caller = CallerContext("alice", bearer_token=token("agents:run:helper"))
            answer = await runtime.run("asker", "hi", "s", caller=caller)
            nobody = await runtime.run("asker", "hi", "s2")
    assert answer.response == "from afar"
    assert "There is no tool" in nobody.response


def test_who_uses_none_of_it_loads_none_of_it() -> None:
    """The server, the command and the tools of an agent come without the SDK and without cryptography."""
    script = (
        "import sys, astromesh.api.app, astromesh.tools.mcp.toolset, astromesh.tools.kinds.builtin\n"
        "print(sorted({'mcp', 'httpx2', 'jwt', 'cryptography'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
