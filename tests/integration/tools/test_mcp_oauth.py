"""OAuth of the MCP client: logins by the command, tokens in the data folder, refreshed once for all."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from astromesh.errors import NetError, ToolError
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.testing import ManualClock
from astromesh.tools.base import ToolContext
from astromesh.tools.mcp.client import MCPServer
from astromesh.tools.mcp.oauth import Challenge, OAuthOptions
from astromesh.tools.mcp.server import AuthMiddleware, RequestContext, ToolServer
from astromesh.types import CallerContext
from tests.integration.mcp_servers import free_port, mcp_yaml, serving
from tests.unit.access.tokens import SECRET, signed

NAME = "notes"
#: a browser for the command, whose user agrees at once
_CLICK = """
import sys
from urllib.request import ProxyHandler, build_opener
build_opener(ProxyHandler({})).open(sys.argv[1])
"""


class Issuer:
    """An authorization server and its protected MCP server, at one origin."""

    def __init__(self) -> None:
        self.url = self.elsewhere = ""
        self.grants: list[str] = []
        self.revoked: list[tuple[str, str]] = []
        self.lifetime = 3600
        self.asked, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()
        self._challenges: dict[str, str] = {}
        self._app = Starlette(
            routes=[
                Route("/.well-known/oauth-protected-resource/mcp", self._resource),
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/revoke", self._revoke, methods=["POST"]),
            ]
        )
        tools = ToolServer(NAME, auth=AuthMiddleware(secret=SECRET, audience=NAME))

        @tools.tool()
        async def who(ctx: RequestContext) -> str:
            """Says who asks."""
            return str(ctx.client.subject)

        self._tools = tools.app()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        mine = scope["type"] == "http" and scope["path"] != "/mcp"
        await (self._app if mine else self._tools)(scope, receive, send)

    async def _resource(self, _: Request) -> Response:
        servers = [self.elsewhere or self.url]
        return JSONResponse({"resource": f"{self.url}/mcp", "authorization_servers": servers})

    async def _metadata(self, _: Request) -> Response:
        ends = {f"{one}_endpoint": f"{self.url}/{path}" for one, path in (
            ("authorization", "authorize"), ("token", "token"), ("registration", "register"),
            ("revocation", "revoke"),
        )}  # fmt: skip
        more = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
        return JSONResponse({"issuer": self.url, **ends, **more})

    async def _register(self, request: Request) -> Response:
        return JSONResponse({**await request.json(), "client_id": "registered"}, 201)

    async def _authorize(self, request: Request) -> Response:
        asked = request.query_params
        assert (asked["code_challenge_method"], asked["resource"]) == ("S256", f"{self.url}/mcp")
        self._challenges["code"] = asked["code_challenge"]
        back = urlencode({"code": "code", "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{back}")

    async def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.grants.append(form["grant_type"])
        self.asked.set()
        await self.open.wait()
        if form["grant_type"] == "authorization_code":
            digest = sha256(form["code_verifier"].encode()).digest()
            assert urlsafe_b64encode(digest).rstrip(b"=").decode() == self._challenges[form["code"]]
        who = {"sub": f"user-{len(self.grants)}", "aud": NAME, "exp": time.time() + 3600}
        token = {"access_token": signed(who), "token_type": "bearer", "expires_in": self.lifetime}
        return JSONResponse({**token, "refresh_token": "again"})

    async def _revoke(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        assert form["token"] and form["client_id"] == "registered"
        self.revoked.append((form["token_type_hint"], form["token"]))
        return Response()


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    async with serving(issuer) as url:
        issuer.url = url
        yield issuer


class Clicks:
    """A browser whose user agrees at once."""

    redirect_uri = "http://127.0.0.1:9/callback"

    async def authorize(self, url: str) -> str:
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            return (await client.get(url)).headers["location"]


def login_of(issuer: Issuer, deps: Deps) -> Any:
    return MCPServer.login_of(options_of(issuer), deps)


def options_of(issuer: Issuer) -> MCPServer.Options:
    return MCPServer.Options(name=NAME, transport="http", url=f"{issuer.url}/mcp", oauth=OAuthOptions())


async def ask(issuer: Issuer, deps: Deps, caller: CallerContext | None = None) -> Any:
    """What the tool says to a client that is opened for one call, of the installation or of a caller."""
    server = await MCPServer.open(options_of(issuer), deps)
    try:
        await server.tools()
        context = ToolContext(tool="who", caller=caller)
        return await server.call("who", {}, context, caller is not None)
    finally:
        await server.close()


async def test_a_login_by_the_command_serves_until_it_is_forgotten(tmp_path: Path) -> None:
    """Without one, the error says how to get it. The stored tokens are encrypted, and of the user alone."""
    config, data = tmp_path / "config", tmp_path / "data"
    config.mkdir()
    click = tmp_path / "click.py"
    click.write_text(_CLICK)

    async def command(*words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "astromesh", "mcp", *words, "--config", str(config), "--data", str(data),
            env={**os.environ, "BROWSER": f"{sys.executable} {click} %s"}, stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await process.wait() == 0

    async with issuing() as issuer, Http() as http:
        deps = Deps(http=http, data_dir=data, config_dir=config)
        mcp_yaml(config, **{NAME: {"transport": "http", "url": f"{issuer.url}/mcp", "oauth": {}}})
        with pytest.raises(ToolError, match="astromesh mcp login notes"):
            await ask(issuer, deps)
        await command("login", NAME)
        assert await ask(issuer, deps) == "user-1"
        own = signed({"sub": "carol", "aud": NAME, "exp": time.time() + 3600})
        assert await ask(issuer, deps, CallerContext(bearer_token=own)) == "carol"
        assert issuer.grants == ["authorization_code"]
        stored = data / "mcp" / f"{NAME}.login"
        assert b"again" not in stored.read_bytes()
        assert {stat.S_IMODE(one.stat().st_mode) for one in stored.parent.glob("*login*")} == {0o600}
        (data / "mcp" / "logins.key").write_bytes(bytes(32))
        with pytest.raises(ToolError, match="astromesh mcp login notes"):  # of another key
            await ask(issuer, deps)
        await command("logout", NAME)
        with pytest.raises(ToolError, match="astromesh mcp login notes"):
            await ask(issuer, deps)


async def test_a_token_that_ends_is_refreshed_once_for_all(tmp_path: Path) -> None:
    """Sessions that share a data folder, as processes do, wait for the one that refreshes, cut or not."""
    async with issuing() as issuer, Http() as http:
        clock = ManualClock(time.time())
        deps = Deps(http=http, data_dir=tmp_path, clock=clock)
        await login_of(issuer, deps).login(Clicks())
        first = await login_of(issuer, deps).token()
        clock.advance(3600)
        tokens = await asyncio.gather(*(login_of(issuer, deps).token() for _ in range(5)))
        assert issuer.grants == ["authorization_code", "refresh_token"]
        assert set(tokens) == {tokens[0]} != {first}
        refused = [login_of(issuer, deps).renew(tokens[0], Challenge(status=401)) for _ in range(3)]
        assert len(set(await asyncio.gather(*refused)) - {tokens[0]}) == 1
        assert issuer.grants.count("refresh_token") == 2

        clock.advance(3600)
        issuer.asked.clear()
        issuer.open.clear()
        cut = asyncio.create_task((session := login_of(issuer, deps)).token())
        await issuer.asked.wait()
        cut.cancel()
        await asyncio.wait({cut})
        issuer.open.set()
        assert (last := await session.token()) not in tokens
        assert issuer.grants.count("refresh_token") == 3
        assert (await session.logout(), await session.logout()) == (True, False)
        assert issuer.revoked == [("refresh_token", "again"), ("access_token", last)]


async def test_an_authorization_server_on_this_machine_must_be_allowed(tmp_path: Path) -> None:
    """Metadata that names another server than the operator did cannot make us ask hosts inside."""
    async with issuing() as issuer, Http() as http:
        issuer.elsewhere = f"http://127.0.0.1:{free_port()}"
        with pytest.raises(NetError, match="not a public address"):
            await login_of(issuer, Deps(http=http, data_dir=tmp_path)).login(Clicks())
    assert issuer.grants == []
