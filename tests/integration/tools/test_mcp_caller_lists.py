"""A server that lists its tools to callers only: each caller's own list follows what the server tells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp.server.mcpserver import Context, MCPServer
from structlog.testing import capture_logs

from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.tools.base import ToolContext
from astromesh.tools.mcp.client import MCPServer as Peer
from astromesh.tools.mcp.server import AuthMiddleware
from astromesh.types import CallerContext, calling_as
from tests.integration.mcp_servers import serving, until
from tests.unit.access.tokens import AUDIENCE, SECRET, claims, signed


def caller(name: str) -> CallerContext:
    return CallerContext(user_id=name, bearer_token=signed(claims(4e9, sub=name, iat=None)))


def learning() -> MCPServer:
    """A server of the SDK that gets another tool, and changes the words of one it has, when it is told to."""
    server = MCPServer("peer", log_level="ERROR")

    def word() -> str:
        """As it was."""
        return "said"

    server.add_tool(word)

    @server.tool()
    async def learn(ctx: Context) -> str:
        """Learns."""
        server.add_tool(word, name="learned")
        server.remove_tool("word")
        server.add_tool(word, description="Not as it was.")
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return "learned"

    return server


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Peer]:
    auth = AuthMiddleware(secret=SECRET, audience=AUDIENCE)
    async with (
        auth.opened(),
        serving(auth.around(learning().streamable_http_app())) as url,
        Http() as http,
    ):
        options = Peer.Options(name="peer", transport="http", url=f"{url}/mcp", forward_identity=True)
        server = await Peer.open(options, Deps(http=http, data_dir=folder, config_dir=folder))
        try:
            await server.wait_first_attempt()
            yield server
        finally:
            await server.close()


def names(server: Peer) -> set[str]:
    return {tool.name for tool in server.definitions(True).tools}


async def offered(server: Peer, who: CallerContext) -> set[str]:
    """What a run of this caller has."""
    with calling_as(who):
        await server.prepare(True)
        return names(server)


async def test_each_callers_list_follows_the_changes_that_the_server_tells(tmp_path: Path) -> None:
    alice, bob = caller("alice"), caller("bob")
    async with guarded(tmp_path) as server:
        assert names(server) == set()
        assert [await offered(server, who) for who in (alice, bob)] == [{"word", "learn"}] * 2
        context = ToolContext(tool="learn", caller=alice)
        with capture_logs() as logged:
            assert await server.call("learn", {}, context, True) == "learned"
            for who in (alice, bob):

                async def knows(who: CallerContext = who) -> bool:
                    return "learned" in await offered(server, who)

                await until(knows)
    changes = [entry["tool"] for entry in logged if entry["event"] == "mcp_tool_changed"]
    assert changes == ["word", "word"]


async def test_a_list_is_kept_while_its_server_is_away(tmp_path: Path) -> None:
    """What a caller was offered last stays; the call itself says what is wrong."""
    alice = caller("alice")
    async with guarded(tmp_path) as server:
        before = await offered(server, alice)
        place = next(iter(server._callers._sessions.values()))
        assert place.connection is not None
        place.connection.end()
        with calling_as(alice):
            assert names(server) == before
        assert await offered(server, alice) == before


@pytest.mark.parametrize("who", [CallerContext(bearer_token="forged"), CallerContext(), None])
async def test_nobody_sees_the_list_of_somebody_else(tmp_path: Path, who: CallerContext | None) -> None:
    async with guarded(tmp_path) as server:
        await offered(server, caller("alice"))
        with calling_as(who):
            await server.prepare(True)
            assert names(server) == set()
