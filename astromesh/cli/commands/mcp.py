"""`astromesh mcp`: the agents as MCP tools over stdio; logins at the MCP servers that agents use."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import parse_qs, urlsplit

import typer
from aiohttp import web

from astromesh.cli.errors import reported_errors
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, folders_of
from astromesh.cli.terminal import note
from astromesh.config.folder import load
from astromesh.errors import ConfigError, NotFound, ToolTimeout
from astromesh.logs import configure_logging
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.text import did_you_mean

app = typer.Typer()
_SERVER = Annotated[str, typer.Argument(metavar="SERVER", help="Name of the server in mcp.yaml.")]
#: seconds that a person has to log in
_PATIENCE = 600.0
_DONE = "You are logged in to {}. You can close this page."
_PASTE = "Open this page, log in, and paste the address that the browser shows in the end:\n{}\n"


@app.callback(invoke_without_command=True)
def mcp(context: typer.Context, config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Serve the agents as MCP tools over stdio, for editors.

    The client starts this command, and closes stdin to end it. Log lines go to stderr.
    """
    if context.invoked_subcommand is not None:
        return
    folders = folders_of(config, data)
    configure_logging("warning")
    with reported_errors():
        asyncio.run(_serve(folders))


async def _serve(folders: tuple[Path, Path]) -> None:
    from astromesh.api.routes.mcp import serve_stdio  # loads FastAPI

    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        await serve_stdio(runtime)


@app.command()
def login(
    server: _SERVER,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    paste: Annotated[
        bool, typer.Option("--paste", help="Without a browser here: paste the address of the last page.")
    ] = False,
) -> None:
    """Log in at an MCP server with the browser.

    The server has 'oauth' in mcp.yaml.
    """
    configure_logging("warning")
    with reported_errors():
        asyncio.run(_login(server, folders_of(config, data), paste=paste))
    note(f"Logged in to {server}.")


@app.command()
def logout(server: _SERVER, config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Forget the login at an MCP server."""
    with reported_errors():
        was_there = asyncio.run(_logout(server, folders_of(config, data)))
    note(f"Logged out of {server}." if was_there else f"There is no login at {server}.")


async def _login(server: str, folders: tuple[Path, Path], *, paste: bool) -> None:
    async with _session(server, folders) as (session, port):
        if paste:
            await session.login(PasteBrowser(port))
            return
        try:
            async with LoopbackBrowser(server, port) as browser, asyncio.timeout(_PATIENCE):
                await session.login(browser)
        except TimeoutError as error:
            raise ToolTimeout(f"Nobody has logged in within {_PATIENCE / 60:g} minutes.") from error


async def _logout(server: str, folders: tuple[Path, Path]) -> bool:
    async with _session(server, folders) as (session, _):
        return bool(await session.logout())


@asynccontextmanager
async def _session(server: str, folders: tuple[Path, Path]) -> AsyncIterator[tuple[Any, int]]:
    """Opens the login of a server, with the port that it returns to.

    Raises:
        InvalidConfiguration: the file has faults.
        NotFound: there is no such server, or it has no `oauth`.
    """
    configuration = load(folders[0])
    configuration.require_sound()
    servers = configuration.mcp.spec.servers
    record = servers.get(server)
    if record is None:
        raise NotFound(f"mcp.yaml has no server {server!r}. {did_you_mean(server, servers)}".strip())
    if record.oauth is None:
        raise NotFound(f"The server {server!r} has no `oauth` in mcp.yaml: add `oauth: {{}}`.")
    plugin = Plugins().load("tool_sources", "mcp")
    options = plugin.Options.model_validate({"name": server, **record.model_dump()})
    async with Http(configuration.runtime.spec.network.allow_hosts) as http:
        deps = Deps(http=http, data_dir=folders[1], config_dir=folders[0])
        yield plugin.login_of(options, deps), record.oauth.redirect_port


class LoopbackBrowser:
    """The browser of this machine, which returns to a port of it (RFC 8252, 7.3).

    Args:
        server: that the user logs in to.
        port: 0 for any.
    """

    def __init__(self, server: str, port: int) -> None:
        self._server, self._port, self._state = server, port, ""
        self._result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.redirect_uri = ""

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_get("/callback", self._receive)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"The login cannot return to port {self._port}: {os.strerror(error.errno or 0)}. "
                "Free it, or change `oauth.redirect_port`."
            ) from error
        self.redirect_uri = f"http://127.0.0.1:{self._runner.addresses[0][1]}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def authorize(self, url: str) -> str:
        """See `Browser`."""
        self._state = _state_of(url)
        note(f"Log in with the browser: {url}")
        await asyncio.to_thread(webbrowser.open, url)
        return await self._result

    async def _receive(self, request: web.Request) -> web.Response:
        if _state_of(str(request.url)) != self._state or self._result.done():  # of another page
            return web.Response(status=404)
        self._result.set_result(str(request.url))
        text = "The login was refused." if "error" in request.query else _DONE.format(self._server)
        return web.Response(text=text)


class PasteBrowser:
    """A browser on another machine. Nobody listens where it returns to."""

    def __init__(self, port: int) -> None:
        self.redirect_uri = f"http://127.0.0.1:{port or 8976}/callback"

    async def authorize(self, url: str) -> str:
        """See `Browser`."""
        print(_PASTE.format(url), file=sys.stderr)
        line: str = await asyncio.to_thread(sys.stdin.readline)
        return line.strip()


def _state_of(url: str) -> str:
    found: list[str] = parse_qs(urlsplit(url).query).get("state", [])
    return "".join(found)
