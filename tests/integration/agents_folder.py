"""A configuration folder and a server around it, in this process, for tests of the API."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml

from astromesh.api.app import create_app
from astromesh.api.auth import Auth
from astromesh.api.middleware.limits import DEFAULT_LIMITS, ConcurrencyLimits
from astromesh.cli.commands.serve import uvicorn_config
from astromesh.config.runtime import RuntimeSpec
from astromesh.plugins import Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.clock import SystemClock
from astromesh.testing import ScriptedProvider, plugin_of


def manifest(name: str = "helper", **spec: Any) -> dict[str, Any]:
    """An agent on the scripted provider; `spec` replaces or adds keys."""
    return {
        "apiVersion": "astromesh/v1",
        "kind": "Agent",
        "metadata": {"name": name, "version": "1.0.0"},
        "spec": {
            "identity": {"display_name": name, "description": "Helps."},
            "model": {"primary": {"provider": "scripted", "model": "test-model"}},
            "prompts": {"system": "You are {{ agent_name }}. {{ description }}"},
            **spec,
        },
    }


def write(folder: Path, *agents: dict[str, Any]) -> Path:
    """Writes manifests into `folder/agents`."""
    place = folder / "agents"
    place.mkdir(parents=True, exist_ok=True)
    for agent in agents:
        path = place / f"{agent['metadata']['name']}.agent.yaml"
        path.write_text(yaml.safe_dump(agent, sort_keys=False))
    return folder


def store_in(folder: Path, url: str) -> None:
    """Writes a runtime.yaml that stores everything in a database."""
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": {"storage": {"url": url}}}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(head))


class LaterClock(SystemClock):
    """The time, so many seconds later."""

    later = 0.0

    def now(self) -> float:
        return super().now() + self.later


def runtime_of(
    folder: Path, provider: ScriptedProvider, *, env: Mapping[str, str] | None = None, **more: Any
) -> AgentRuntime:
    """A runtime whose provider `scripted` is this one."""
    plugins = Plugins({"providers": {"scripted": plugin_of(provider)}, **more.pop("plugins", {})})
    return AgentRuntime(folder, data_dir=folder / "data", plugins=plugins, env=env or {}, **more)


@asynccontextmanager
async def client_of(runtime: AgentRuntime, auth: Auth | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the bootstrapped runtime's app."""
    app = create_app(runtime, auth)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


class _Quiet(uvicorn.Server):
    """A server that leaves the signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(
    runtime: AgentRuntime, auth: Auth | None = None, limits: ConcurrencyLimits = DEFAULT_LIMITS
) -> AsyncIterator[str]:
    """The runtime's app on a real port, with the settings of `astromesh serve`; answers `host:port`."""
    config = uvicorn_config(create_app(runtime, auth, limits=limits), RuntimeSpec())
    config.loop = "none"
    server = _Quiet(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
