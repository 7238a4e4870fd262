"""Secrets that are seeded everywhere appear nowhere: no log, trace, event, error, answer or file (S7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, Self

import orjson
import pytest
from starlette.testclient import TestClient
from structlog import configure as configure_structlog
from structlog import get_config, is_configured, reset_defaults

from astromesh.access.keys import ApiKeyRequest, ApiKeyStore
from astromesh.api.app import create_app
from astromesh.logs import configure_logging
from astromesh.memory.backends.redis import RedisConversations, RedisOptions
from astromesh.plugins import Deps
from astromesh.storage.sqlite import FILE, Database
from astromesh.telemetry.clock import SystemClock
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.platform.processes import free_port
from tests.platform.stores import impatient
from tests.unit.access.tokens import claims, signed

SEEDS = {
    "OPENAI_KEY": "sk-seeded-openai-0123456789abcdef",
    "HOOK_KEY": "seeded-hook-0123456789abcdef",
    "JWT_SECRET": "seeded-jwt-0123456789abcdef0123456789abcdef",
    "REDIS_PASSWORD": "seeded-redis-0123456789abcdef",
    "APP_SECRET": "seeded-app-secret-0123456789abcdef",
    "ACCESS_TOKEN": "seeded-access-token-0123456789abcdef",
    "VERIFY_TOKEN": "seeded-verify-token-0123456789abcdef",
}
AGENTS = ("helper", "dumb", "plain", "forgetful")
HEAD = "apiVersion: astromesh/v1\nkind: {}\n"


@pytest.fixture
def logs() -> Iterator[None]:
    """Everything is logged, as JSON on stderr."""
    before = get_config() if is_configured() else None
    configure_logging("debug", "json")
    configure_structlog(cache_logger_on_first_use=False)
    yield
    reset_defaults()
    if before is not None:
        configure_structlog(**before)


def configured(folder: Path, closed: int) -> Path:
    """Agents whose model, tool and store are away, so that every way of failing is gone."""
    hook = {
        "name": "hook", "type": "webhook", "endpoint": f"http://127.0.0.1:{closed}/hook", "method": "POST",
        "headers": {"Authorization": "Bearer ${HOOK_KEY}"}, "parameters": {"type": "object"},
    }  # fmt: skip
    openai = {"provider": "openai", "model": "m", "endpoint": f"http://127.0.0.1:{closed}/v1", "timeout": 2}
    write(
        folder,
        manifest("helper", tools=[hook], memory={"conversational": {"backend": "sqlite"}}),
        manifest("dumb", model={"primary": {**openai, "api_key_env": "OPENAI_KEY"}}),
        manifest("plain", model={"primary": {**openai, "api_key": "${OPENAI_KEY}"}}),
        manifest("forgetful", memory={"conversational": {"backend": "redis"}}),
    )
    (folder / "runtime.yaml").write_text(
        HEAD.format("RuntimeConfig")
        + "spec:\n  auth: {mode: both, jwt: {secret_env: JWT_SECRET}}\n"
        + f'  redis: {{url: "redis://:${{REDIS_PASSWORD}}@127.0.0.1:{closed}/0"}}\n'
    )
    (folder / "channels.yaml").write_text(
        HEAD.format("ChannelConfig")
        + "spec: {channels: {whatsapp: {verify_token: '${VERIFY_TOKEN}', access_token: '${ACCESS_TOKEN}',"
        + " phone_number_id: '1', app_secret: '${APP_SECRET}', default_agent: helper}}}\n"
    )
    return folder


class Impatient(RedisConversations):
    @classmethod
    async def open(cls, options: RedisOptions, deps: Deps) -> Self:
        return await super().open(options, await impatient(deps))


async def key_of(data: Path) -> str:
    async with Database(data / FILE) as database:
        store = await ApiKeyStore.open(database, SystemClock())
        return (await store.create(ApiKeyRequest("all", frozenset({"admin"}))))[1]


def test_seeded_secrets_appear_nowhere(
    tmp_path: Path, logs: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SEEDS.items():
        monkeypatch.setenv(name, value)
    provider = ScriptedProvider([ToolCall("c1", "hook", "{}")], "It is done.", "again", repeat=True)
    stores = {"conversation_stores": {"redis": Impatient}}
    runtime = runtime_of(configured(tmp_path, free_port()), provider, env=SEEDS, plugins=stores)
    key = asyncio.run(key_of(tmp_path / "data"))
    token = signed(claims(time.time(), iss=None, aud=None, scope="admin"), SEEDS["JWT_SECRET"])
    said: list[tuple[int, str]] = []
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        ways = {"authorization": f"Bearer {key}"}, {"x-api-key": token}
        with ThreadPoolExecutor(16) as at_once:  # a store that is away is waited for
            said += at_once.map(partial(run, client), list(product(ways, AGENTS, ("", "text/event-stream"))))
            said += chain.from_iterable(at_once.map(partial(everything, client), ways))
        said += refused(client, key, token)
    output = capfd.readouterr()
    statuses = {answer[0] for answer in said}
    assert {200, 401, 502, 503} <= statuses, statuses
    kept = [p.read_bytes().decode("latin-1") for p in (tmp_path / "data").rglob("*") if p.is_file()]
    assert "run" in output.err
    places = {"answers": str(said), "logs": output.err + output.out, "files": "\n".join(kept)}
    secrets = {**SEEDS, "API_KEY": key, "TOKEN": token, "SIGNATURE": token.rpartition(".")[2]}
    found = [(name, place) for name, s in secrets.items() for place, text in places.items() if s in text]
    assert found == []


def run(client: TestClient, asked: tuple[dict[str, str], str, str]) -> tuple[int, str]:
    """A run; they end in every way."""
    headers, agent, accept = asked
    body = {"query": "Hello", "session_id": "-".join([*headers, accept.partition("/")[0]])}
    answer = client.post(f"/v1/agents/{agent}/run", json=body, headers={**headers, "accept": accept})
    return answer.status_code, answer.text


def everything(client: TestClient, headers: dict[str, str]) -> list[tuple[int, str]]:
    """All that can be read of the runs afterwards."""
    said = []
    runs = client.get("/v1/runs", headers=headers).json()["runs"]
    paths = [f"/v1/runs/{run['run_id']}{part}" for run in runs for part in ("", "/events")]
    paths += [f"/v1/agents/{agent}" for agent in AGENTS]
    paths += [
        "/v1/agents",
        "/v1/tools",
        "/v1/providers",
        "/v1/traces",
        "/v1/audit",
        "/metrics",
        "/openapi.json",
    ]
    paths += ["/health/ready", "/v1/models", "/v1/agents/helper/sessions"]
    traces: Any = client.get("/v1/traces", headers=headers).json()["traces"]
    paths += [f"/v1/traces/{trace['trace_id']}" for trace in traces]
    for path in paths:
        answer = client.get(path, headers=headers)
        said.append((answer.status_code, answer.text))
    return said


def refused(client: TestClient, key: str, token: str) -> list[tuple[int, str]]:
    """Wrong credentials and a wrong webhook: what was sent does not come back."""
    bad = [
        {"authorization": f"Bearer {key}x"},
        {"x-api-key": token[:-4]},
        {"authorization": f"Bearer {token}x"},
    ]
    answers = [client.get("/v1/agents", headers=headers) for headers in bad]
    answers.append(client.post("/v1/channels/whatsapp/webhook", content=orjson.dumps({"entry": []})))
    answers.append(client.get("/v1/channels/whatsapp/webhook?hub.mode=subscribe&hub.verify_token=x"))
    return [(answer.status_code, answer.text) for answer in answers]
