"""The container's files name what exists, and the server that they start asks for a key."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
import yaml

from astromesh.config.load import load
from astromesh.plugins import Plugins
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, runtime_of

ROOT = Path(__file__).parents[2]


def test_every_path_that_the_dockerfile_copies_exists() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(), re.M)
    sources = [source for line in lines for source in line.split()[:-1]]
    assert sources
    assert [s for s in sources if not (ROOT / s).exists()] == []


def test_the_compose_file_publishes_on_loopback_only_and_builds_from_here() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)
    assert services["server"]["build"] == "."


async def test_the_containers_configuration_is_sound_and_asks_for_a_key(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder)
    shutil.copy(ROOT / "docker" / "runtime.yaml", folder / "runtime.yaml")
    assert load(folder, env={}, resolver=Plugins()).every_fault() == ()
    async with client_of(runtime_of(folder, ScriptedProvider())) as client:
        answers: list[httpx.Response] = [await client.get("/v1/agents"), await client.get("/health/live")]
    assert [a.status_code for a in answers] == [401, 200]
