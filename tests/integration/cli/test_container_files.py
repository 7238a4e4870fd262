"""The container's files name what exists, secrets stay in files, and what they start asks for a key."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import jsonschema_rs
import pytest
import typer
import yaml
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.cli.main import complete_app
from astromesh.cli.startup import SECRETS_VARIABLE, load_secret_files
from astromesh.config.folder import load
from astromesh.errors import ConfigError
from astromesh.plugins import Plugins
from astromesh.providers.presets import PRESETS
from astromesh.telemetry.metrics import COUNTERS, HISTOGRAMS
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, store_in, write
from tests.platform.postgres import PostgresServer

ROOT = Path(__file__).parents[3]
#: the Compose Specification's own schema (github.com/compose-spec/compose-spec, Apache 2.0)
SCHEMA = ROOT / "tests" / "platform" / "schemas" / "compose-spec.json"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: what their blocks in channels.yaml are made of
CHANNEL_PAGES = ("docs/whatsapp.md", "docs/telegram.md", "docs/slack.md")
OURS = ("server", "worker")


# -- Dockerfile --------------------------------------------------------------------------------------------


def test_every_path_that_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M)
    sources = [source for line in lines for source in line.split()[:-1]]
    assert sources
    assert [s for s in sources if not (ROOT / s).exists()] == []
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert [s for s in sources if s not in let_through] == []
    assert "docker/secrets" not in " ".join(let_through)


def test_the_image_runs_as_a_user_that_may_nothing_and_says_whether_it_lives() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]
    assert len(stages) == 2
    assert "USER astromesh" in stages[-1]
    assert "useradd" in stages[-1]
    assert "pip" not in stages[-1]
    health = re.search(r"HEALTHCHECK.*?CMD (\[.*?\])", stages[-1], re.S)
    assert health and "/health/live" in json.loads(health[1])[2]
    compile(json.loads(health[1])[2], "health", "exec")


def test_the_image_installs_what_is_pinned_with_every_extra() -> None:
    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / "server.txt").read_text(), re.M))
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.search(r"\[project.optional-dependencies\](.*?)\n\n", project, re.S)
    assert extras
    wanted = set(re.findall(r'"([a-z0-9-]+)(?:\[|>)', extras[1]))
    assert wanted
    assert wanted - pinned == set()
    assert "--require-hashes -r requirements/server.txt" in DOCKERFILE


@pytest.mark.parametrize(
    "argv",
    [json.loads(re.findall(r"^CMD (\[.*\])", DOCKERFILE, re.M)[-1]), *(SERVICES[s]["command"] for s in OURS)],
    ids=str,
)
def test_every_command_is_one_of_ours(argv: list[str]) -> None:
    program, name, *_ = argv
    assert program == "astromesh"
    group = typer.main.get_command(complete_app())
    assert name in group.commands  # type: ignore[attr-defined]


# -- compose -----------------------------------------------------------------------------------------------


def test_the_compose_file_is_one_by_the_specification() -> None:
    validator = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()))
    assert [str(error) for error in validator.iter_errors(COMPOSE)] == []
    assert not validator.is_valid({"services": {"server": {"comand": "x"}}})


def test_the_services_and_profiles_are_those_of_the_page() -> None:
    profiles = {name: service.get("profiles", []) for name, service in SERVICES.items()}
    assert profiles == {
        "server": [],
        "worker": [],
        "postgres": [],
        "valkey": [],
        "collector": ["observability"],
        "prometheus": ["observability"],
        "grafana": ["observability"],
        "ollama": ["local-llm"],
    }
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in SERVICES if f"`{name}`" not in page] == []


def test_only_the_server_and_grafana_are_published_and_on_loopback() -> None:
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert set(published) == {"server", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


@pytest.mark.parametrize("name", OURS)
def test_ours_run_on_a_read_only_root_without_capabilities(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["build"] == "."
    waits = {other: how["condition"] for other, how in service["depends_on"].items()}
    assert waits == dict.fromkeys(("postgres", "valkey"), "service_healthy")
    assert all("healthcheck" in SERVICES[other] for other in waits)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_rotated_logs_an_init_an_exact_image_and_a_network(name: str) -> None:
    service = SERVICES[name]
    assert {"mem_limit", "cpus", "pids_limit"} <= service.keys()
    assert service["init"] is True
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert set(service["networks"]) <= COMPOSE["networks"].keys()
    if "build" not in service:
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), service["image"]
    assert not service.get("healthcheck", {}).get("disable")


def test_databases_share_a_network_that_leads_nowhere_with_ours_alone() -> None:
    assert COMPOSE["networks"]["data"] == {"internal": True}
    inside = {name for name, service in SERVICES.items() if "data" in service["networks"]}
    assert inside == {*OURS, "postgres", "valkey"}
    assert [SERVICES[name]["networks"] for name in ("postgres", "valkey")] == [["data"], ["data"]]


@pytest.mark.parametrize("name", OURS)
def test_the_configuration_is_mounted_and_the_runtime_of_containers_over_it(name: str) -> None:
    mounted = [volume for volume in SERVICES[name]["volumes"] if volume.startswith("./")]
    assert mounted == ["./config:/config:ro", "./docker/runtime.yaml:/config/runtime.yaml:ro"]
    assert (ROOT / "config" / "runtime.yaml").is_file()  # else the second mount has no place


def test_every_key_of_a_provider_or_channel_has_a_slot() -> None:
    """Also those of the commented blocks, so that a comment's end needs no change of this file."""
    files = ("config/providers.yaml", "config/channels.yaml", *CHANNEL_PAGES)
    text = "".join((ROOT / file).read_text() for file in files)
    named = re.findall(r"(?:api_key_env: |\$\{)([A-Z_]+?)(?:[},\n:]|$)", text)
    named += [preset.variable for preset in PRESETS if preset.variable]
    wanted = {name.lower() for name in named if not name.endswith("_BASE_URL")}
    assert len(wanted) > 10
    assert wanted <= set(SERVICES["server"]["secrets"])


def test_the_healthcheck_of_a_worker_sees_an_event_loop_that_stands_still(tmp_path: Path) -> None:
    code = SERVICES["worker"]["healthcheck"]["test"][3].replace("/data", str(tmp_path))
    place = tmp_path / "processes" / "workers"
    place.mkdir(parents=True)

    def is_healthy() -> bool:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0

    (place / "another-host-1-abc").touch()
    assert not is_healthy()
    own = place / f"{socket.gethostname()}-1-abc"
    own.touch()
    assert is_healthy()
    os.utime(own, (0, 0))
    assert not is_healthy()


def test_images_are_pinned_by_digest_where_a_registry_answers(tmp_path: Path) -> None:
    for name in ("Dockerfile", "docker-compose.yml", "docker"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text("#!/bin/sh\nfor last; do :; done\nprintf 'sha256:%s' \"${#last}\"\n")
    docker.chmod(0o755)
    env = {**os.environ, "PATH": f"{docker.parent}:{os.environ['PATH']}"}
    for _ in range(2):  # what has a digest keeps it
        subprocess.run([tmp_path / "docker" / "digests.sh"], env=env, check=True)
    services = yaml.safe_load((tmp_path / "docker-compose.yml").read_text())["services"]
    images = [one["image"] for one in services.values() if "build" not in one]
    assert all(re.fullmatch(r"\S+:\S+@sha256:\d+", image) for image in images), images
    bases = re.findall(r"^FROM (\S+)", (tmp_path / "Dockerfile").read_text(), re.M)
    assert all(re.fullmatch(r"python:\S+@sha256:\d+", base) for base in bases), bases


async def test_a_backup_restores_what_was_there(
    tmp_path: Path, postgres_server: PostgresServer, postgres_database: str
) -> None:
    """With pg_dump and pg_restore of the server, as the scripts call them in its container."""
    write(tmp_path, manifest())
    store_in(tmp_path, postgres_database)
    parts = urlsplit(postgres_database)
    env = {
        **os.environ, "IN_POSTGRES": "", "PATH": f"{postgres_server.binaries}:{os.environ['PATH']}",
        "PGHOST": parts.hostname or "", "PGPORT": str(parts.port), "PGPASSWORD": parts.password or "",
        "POSTGRES_USER": parts.username or "", "POSTGRES_DB": parts.path.strip("/"),
    }  # fmt: skip

    async def run(session: str) -> set[str]:
        """Returns the sessions of all runs, after one more."""
        async with client_of(runtime_of(tmp_path, ScriptedProvider("ok", repeat=True))) as client:
            body = {"query": "hello", "session_id": session}
            async with asyncio.timeout(60):
                made = (await client.post("/v1/agents/helper/runs", json=body)).json()["run_id"]
                while (await client.get(f"/v1/runs/{made}")).json()["status"] != "completed":
                    await asyncio.sleep(0.02)
            return {one["session_id"] for one in (await client.get("/v1/runs")).json()["runs"]}

    dump = tmp_path / "astromesh.dump"
    assert await run("before") == {"before"}
    subprocess.run([ROOT / "docker" / "backup.sh", dump], env=env, check=True)
    assert stat.S_IMODE(dump.stat().st_mode) == 0o600
    assert await run("lost") == {"before", "lost"}
    subprocess.run([ROOT / "docker" / "restore.sh", dump], env=env, check=True)
    assert await run("after") == {"before", "after"}
    dump.write_bytes(dump.read_bytes()[:2000])  # a broken one changes nothing
    assert subprocess.run([ROOT / "docker" / "restore.sh", dump], env=env, check=False).returncode != 0
    assert await run("still") == {"before", "after", "still"}


def test_what_is_mounted_exists_and_every_volume_and_secret_is_declared() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        for secret in service.get("secrets", []):
            assert secret in COMPOSE["secrets"]
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])


def test_secrets_come_from_files_that_the_script_makes_and_git_ignores(tmp_path: Path) -> None:
    script = ROOT / "docker" / "secrets.sh"
    for _ in range(2):
        subprocess.run(["sh", script, tmp_path / "secrets"], check=True)
    made = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    files = {entry["file"] for entry in COMPOSE["secrets"].values()}
    assert files == {f"docker/secrets/{name}" for name in made}
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert (
        made["database_url"] == f"postgresql://astromesh:{made['postgres_password']}@postgres:5432/astromesh"
    )
    assert made["redis_url"] == f"redis://:{made['valkey_password']}@valkey:6379/0"
    assert len({made[n] for n in ("postgres_password", "valkey_password", "grafana_password")}) == 3
    assert "/docker/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert not re.search(r"(?i)(password|_key|token): *[^\s/$\[{]", (ROOT / "docker-compose.yml").read_text())


def test_every_variable_that_compose_sets_is_one_that_something_reads() -> None:
    configuration = "".join(p.read_text() for p in (ROOT / "config").glob("*.yaml"))
    configuration += (ROOT / "docker" / "runtime.yaml").read_text()
    configuration += "".join((ROOT / page).read_text() for page in CHANNEL_PAGES)
    code = "".join(p.read_text() for p in (ROOT / "astromesh" / "cli").glob("*.py"))
    code += " ".join(preset.variable for preset in PRESETS)
    given = set(SERVICES["server"]["environment"]) | set(re.findall(r"(ASTROMESH_\w+)=", DOCKERFILE))
    given |= {name.upper() for name in SERVICES["server"]["secrets"]}
    assert [v for v in sorted(given) if not re.search(rf"\b{v}\b", configuration + code)] == []


def test_the_profiles_configurations_are_sound_and_talk_to_services_that_exist() -> None:
    prometheus = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())["scrape_configs"][0]
    host, port = prometheus["static_configs"][0]["targets"][0].split(":")
    assert host in SERVICES
    assert f"EXPOSE {port}" in DOCKERFILE
    secret = prometheus["authorization"]["credentials_file"].removeprefix("/run/secrets/")
    assert secret in SERVICES["prometheus"]["secrets"]
    sources = yaml.safe_load((ROOT / "docker" / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert sources[0]["url"] == "http://prometheus:9090"
    collector = yaml.safe_load((ROOT / "docker" / "collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(collector[part])
    boards = yaml.safe_load((ROOT / "docker" / "grafana" / "dashboards.yaml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert f"{boards[0]['options']['path']}/astromesh.json" in mounted


def test_the_dashboard_shows_every_metric_and_asks_for_labels_that_there_are(tmp_path: Path) -> None:
    app = create_app(runtime_of(write(tmp_path, manifest()), ScriptedProvider("ok")))
    with TestClient(app) as client:
        text = client.get("/metrics").text
    families = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M)
    there = {f"{name}_bucket" if kind == "histogram" else name for name, kind in families}
    board = json.loads((ROOT / "docker" / "grafana" / "astromesh.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"astromesh_\w+", expression)}
    assert len(names) > 20
    assert names == there
    labels = {f"astromesh_{name}": set(kept) for name, (_, kept) in {**COUNTERS, **HISTOGRAMS}.items()}
    checked = 0
    for expression in asked:
        metric = re.sub(r"_(total|bucket)$", "", re.findall(r"astromesh_\w+", expression)[0])
        grouped = {name.strip() for by in re.findall(r"by \(([^)]+)\)", expression) for name in by.split(",")}
        grouped |= set(re.findall(r"[{,](\w+)=", expression))
        if metric in labels:
            checked += 1
            assert grouped - {"le"} <= labels[metric], expression
    assert checked > 8


# -- what is inside ----------------------------------------------------------------------------------------


async def test_the_containers_configuration_is_sound_and_asks_for_a_key(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder)
    shutil.copy(ROOT / "docker" / "runtime.yaml", folder / "runtime.yaml")
    env = {"DATABASE_URL": "postgresql://u:p@postgres/db", "REDIS_URL": "redis://valkey:6379/0"}
    spec = load(folder, env=env, resolver=Plugins()).runtime.spec
    assert spec.storage.url.get_secret_value() == env["DATABASE_URL"]
    assert spec.redis.url.get_secret_value() == env["REDIS_URL"]
    assert load(folder, env={}, resolver=Plugins()).every_fault() == ()
    async with client_of(runtime_of(folder, ScriptedProvider())) as client:
        answers: list[httpx.Response] = [await client.get("/v1/agents"), await client.get("/health/live")]
    assert [a.status_code for a in answers] == [401, 200]


def test_secrets_are_taken_in_from_files(tmp_path: Path) -> None:
    (tmp_path / "openai_api_key").write_text("sk-from-a-file\n")
    (tmp_path / "given").write_text("from a file")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "..data").mkdir()
    env = {SECRETS_VARIABLE: str(tmp_path), "GIVEN": "by hand"}
    load_secret_files(env)
    assert env == {SECRETS_VARIABLE: str(tmp_path), "GIVEN": "by hand", "OPENAI_API_KEY": "sk-from-a-file"}


@pytest.mark.parametrize("name", ["missing", "binary"])
def test_secrets_that_cannot_be_read_are_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "key").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=SECRETS_VARIABLE):
        load_secret_files({SECRETS_VARIABLE: str(tmp_path / name)})


def test_scripts_can_be_run() -> None:
    assert os.access(ROOT / "docker" / "secrets.sh", os.X_OK)
    for script in (ROOT / "docker").glob("*.sh"):
        subprocess.run(["sh", "-n", script], check=True)
