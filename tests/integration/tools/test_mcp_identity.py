"""The caller's identity on its way to a guarded tool (document 000), and that it never takes another way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import yaml
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from structlog.testing import capture_logs

from astromesh import build_agent
from astromesh.errors import ConfigError
from astromesh.testing import ScriptedProvider
from astromesh.tools.mcp.server import (
    AuthMiddleware,
    HasAllRoles,
    HasRole,
    HasScope,
    RequestContext,
    RequireAuth,
    ToolServer,
)
from astromesh.types import CallerContext, ToolCall, get_current_caller
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.mcp_servers import mcp_yaml, serving
from tests.unit.access.tokens import AUDIENCE, ISSUER, SECRET, claims, raw, signed

NOW = 2_000_000_000.0
FAR = NOW + 10**8


def token(sub: str = "alice", **more: Any) -> str:
    return signed(claims(NOW, sub=sub, exp=FAR, iat=None, **more))


def reports(**auth: Any) -> ToolServer:
    server = ToolServer("reports", auth=AuthMiddleware(secret=SECRET, audience=AUDIENCE, **auth))

    @server.tool(guards=[HasRole("analyst", "boss")])
    async def revenue(quarter: str, ctx: RequestContext) -> dict[str, Any]:
        """Revenue of a quarter."""
        await asyncio.sleep(0.002)
        return {"quarter": quarter, "for": ctx.client.subject, "of": ctx.client.tenant}

    @server.tool(guards=[RequireAuth(), HasAllRoles("analyst", "boss")])
    def salaries() -> str:
        """Everybody's."""
        return "secret figures"

    @server.tool(guards=[HasScope("reports:write")])
    def publish() -> str:
        """Publishes."""
        return "published"

    @server.tool()
    def whoami(ctx: RequestContext) -> str:
        """The caller."""
        return ctx.client.subject or "nobody"

    @server.tool()
    def crashes() -> str:
        """Crashes."""
        raise ValueError(f"with {SECRET}")

    return server


# -- document 000, the whole diagram -------------------------------------------------------------------------


async def test_a_callers_token_goes_with_the_agents_call_to_the_guard_and_the_handler() -> None:
    """ainvoke(caller) → context variable → MCP client → Authorization → JWT → guard → handler → reset."""
    async with serving(reports().app()) as url:
        model = ScriptedProvider([ToolCall("1", "revenue", '{"quarter": "Q1"}')], "Q1 was fine.")
        servers = {"reports": {"transport": "http", "url": f"{url}/mcp", "forward_identity": True}}
        async with build_agent(model, servers=servers) as agent:
            caller = CallerContext(user_id="alice", bearer_token=token())
            result = await agent.ainvoke("How was Q1?", caller=caller)
        assert result.report.tool_calls == ["revenue"]
        heard = model.requests[1].messages[-1]
        assert (heard.role, '"for":"alice"' in heard.content.replace(" ", "")) == ("tool", True)
        assert get_current_caller() is None


async def test_a_caller_without_the_role_is_refused_by_the_guard_and_the_model_is_told() -> None:
    async with serving(reports().app()) as url:
        model = ScriptedProvider([ToolCall("1", "salaries")], "I may not see them.")
        servers = {"reports": {"transport": "http", "url": f"{url}/mcp", "forward_identity": True}}
        async with build_agent(model, servers=servers) as agent:
            await agent.ainvoke("Salaries?", caller=CallerContext(bearer_token=token()))
        heard = model.requests[1].messages[-1].content
    assert "needs the roles analyst, boss" in heard
    assert "secret figures" not in heard


# -- the guarded server --------------------------------------------------------------------------------------

GUARDS = [
    ("whoami", {}, "alice"),
    ("revenue", {"roles": ["boss"]}, "alice"),
    ("revenue", {"roles": []}, "needs the role analyst or boss"),
    ("salaries", {"roles": ["boss"]}, "needs the roles"),
    ("salaries", {"roles": ["boss", "analyst", "x"]}, "secret figures"),
    ("publish", {"scope": "reports:read"}, "needs the scope reports:write"),
    ("publish", {"scope": "a reports:write"}, "published"),
    ("crashes", {}, "internal reason"),
    ("nothing", {}, "no tool"),
]


@pytest.mark.parametrize(("tool", "more", "said"), GUARDS)
async def test_each_guard_passes_and_refuses(tool: str, more: dict[str, Any], said: str) -> None:
    arguments = {"quarter": "Q1"} if tool == "revenue" else {}
    async with serving(reports().app()) as url, mcp_session(f"{url}/mcp", token(**more)) as session:
        result = await session.call_tool(tool, arguments)
    text = result.content[0].text
    assert said in text
    assert SECRET not in text
    assert bool(result.is_error) == (said not in ("alice", "secret figures", "published"))


BAD = {
    "none": "",
    "alg none": raw({"alg": "none"}, claims(NOW, exp=FAR)),
    "expired": signed(claims(NOW, exp=1, iat=None)),
    "other audience": token(aud="other"),
    "other secret": signed(claims(NOW, exp=FAR, iat=None), SECRET + "!"),
    "no token at all": "x.y",
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_401_with_a_challenge(name: str) -> None:
    headers = {"authorization": f"Bearer {BAD[name]}"} if BAD[name] else {}
    async with serving(reports().app()) as url, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{url}/mcp", json={}, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_where_tokens_are_not_required_the_guards_decide() -> None:
    async with serving(reports(required=False).app()) as url:
        async with mcp_session(f"{url}/mcp") as session:
            assert (await session.call_tool("whoami", {})).content[0].text == "nobody"
            assert (await session.call_tool("salaries", {})).is_error
        async with httpx.AsyncClient(timeout=60) as http:
            bad = {"authorization": f"Bearer {BAD['expired']}"}
            assert (await http.post(f"{url}/mcp", json={}, headers=bad)).status_code == 401


def test_a_secret_that_can_be_guessed_is_refused_when_the_server_is_written() -> None:
    for secret in ("", "short"):
        with pytest.raises(ConfigError):
            AuthMiddleware(secret=secret)


@asynccontextmanager
async def mcp_session(url: str, bearer: str = "") -> AsyncIterator[Any]:
    """The SDK's own client, with its own HTTP."""
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


# -- many callers --------------------------------------------------------------------------------------------

JWT_YAML = {"auth": {"mode": "jwt", "jwt": {"issuer": ISSUER, "audience": AUDIENCE, "secret_env": "S"}}}


def folder_for(tmp_path: Path, url: str) -> Path:
    mcp_yaml(tmp_path, reports={"transport": "http", "url": f"{url}/mcp", "forward_identity": True})
    whole = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": JWT_YAML}
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(whole))
    tools = [{"name": "reports", "type": "mcp", "server": "reports", "tools": ["who*", "rev*"]}]
    asks = [{"name": "ask", "type": "agent", "agent": "inner"}]
    return write(tmp_path, manifest("inner", tools=tools), manifest("outer", tools=asks))


def answers(request: Any) -> Any:
    """Calls the tool that is there, then says what came back."""
    last = request.messages[-1]
    if last.role == "tool":
        return last.content
    name = "ask" if request.tools[0].name == "ask" else "whoami"
    return [ToolCall("1", name, '{"query": "who am I?"}' if name == "ask" else "{}")]


async def test_tokens_never_mix_and_are_nowhere_to_be_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two hundred runs of twenty callers at once, through a nested agent."""
    caplog.set_level(logging.DEBUG)
    people = {f"user{n}": token(f"user{n}", scope="agents:run traces:read agents:read") for n in range(20)}
    async with serving(reports().app()) as url:
        model = ScriptedProvider(answers, repeat=True)
        runtime = runtime_of(folder_for(tmp_path, url), model, env={"S": SECRET})
        with capture_logs() as logs:
            async with client_of(runtime) as http:

                async def ask(number: int, name: str) -> str:
                    headers = {"authorization": f"Bearer {people[name]}"}
                    body = {"query": "who am I?", "session_id": f"{name}-{number}"}
                    answer = await http.post("/v1/agents/outer/run", json=body, headers=headers)
                    return str(answer.json()["response"])

                work = [ask(n, name) for n in range(10) for name in people]
                said = await asyncio.gather(*work)
                agents = await http.get("/v1/agents", headers={"authorization": f"Bearer {people['user0']}"})
                events = [str([run.events for run in runtime.runs.logs.newest()]), repr(runtime.state)]
    assert said == [name for _ in range(10) for name in people]
    written = "".join(
        path.read_bytes().decode("latin-1") for path in (tmp_path / "data").rglob("*") if path.is_file()
    )
    everywhere = "".join([str(logs), caplog.text, written, agents.text, *events])
    assert [name for name, secret in people.items() if secret in everywhere] == []
    assert [n for n, secret in people.items() if secret.rpartition(".")[2] in everywhere] == []
