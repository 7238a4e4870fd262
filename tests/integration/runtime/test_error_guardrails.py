"""What a model service says of a failure: it may quote what it was sent, and the output rules hold for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from astromesh.api.errors import problem
from astromesh.errors import AstromeshError, ProviderRejected
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import RecordingSink, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.platform.model_server import ModelServer, Scenario

RULES: list[dict[str, Any]] = [
    {"type": "pii_detection", "action": "redact"},
    {"type": "content_filter", "forbidden_keywords": ["codename"], "action": "redact"},
]
BLOCKING = [{**rule, "action": "block"} for rule in RULES]
SAID = "The text 'mail ann@example.com, card 4111 1111 1111 1111, codename' is refused"
SECRETS = ("ann@example.com", "4111 1111", "codename")
STATUSES = [400, 404]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


def runtime(path: Path, server: ModelServer, rules: list[dict[str, Any]], **more: Any) -> AgentRuntime:
    model = {"primary": {"provider": "openai", "endpoint": f"{server.url}/v1", "model": "m", "api_key": "k"}}
    folder = write(path, manifest(model=model, guardrails={"output": rules}, **more))
    return AgentRuntime(folder, data_dir=path / "data", env={})


async def failed(runtime: AgentRuntime, sink: RecordingSink) -> AstromeshError:
    with pytest.raises(AstromeshError) as caught:
        await runtime.run("helper", "Who?", "s", sinks=[sink])
    return caught.value


async def ended(client: httpx.AsyncClient, run: str) -> str:
    """The run as it is shown once it has failed."""
    async with asyncio.timeout(30):
        while (shown := await client.get(f"/v1/runs/{run}")).json()["status"] != "failed":
            await asyncio.sleep(0.01)
    return shown.text


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("stream", ["token", "final"])
async def test_what_a_service_quotes_is_redacted_wherever_it_is_shown(
    tmp_path: Path, server: ModelServer, status: int, stream: str
) -> None:
    """The problem document, the last event and the log; what the rules leave is still told."""
    server.script = [Scenario(status=status, error=SAID)]
    async with runtime(tmp_path, server, RULES, stream=stream) as opened:
        with capture_logs() as log:
            error = await failed(opened, sink := RecordingSink())
    _, body = problem(error)
    shown = json.dumps([body, sink.one("run.failed"), log], default=str)
    assert not [secret for secret in SECRETS if secret in shown]
    assert "[EMAIL], card [CREDIT_CARD]" in body["detail"]
    assert sink.one("run.failed")["detail"] == str(error)


@pytest.mark.parametrize("status", STATUSES)
async def test_what_a_rule_would_block_is_left_out(tmp_path: Path, server: ModelServer, status: int) -> None:
    """Who failed, and with which status, is still told."""
    server.script = [Scenario(status=status, error=SAID)]
    async with runtime(tmp_path, server, BLOCKING) as opened:
        with capture_logs() as log:
            error = await failed(opened, sink := RecordingSink())
    shown = json.dumps([problem(error)[1], sink.one("run.failed"), log], default=str)
    assert not [secret for secret in SECRETS if secret in shown]
    assert f"openai/m: answered {status}: " in str(error)
    assert "withhold" in str(error)
    assert "The text" not in shown


async def test_a_number_at_the_cut_of_a_long_message_is_seen_whole(
    tmp_path: Path, server: ModelServer
) -> None:
    """Messages are cut where they are shown, behind the rules: half a card number is none to them."""
    server.script = [Scenario(status=400, error="x" * 289 + " 4111 1111 1111 1111 " + "y" * 50)]
    async with runtime(tmp_path, server, RULES) as opened:
        error = await failed(opened, RecordingSink())
    assert "4111" not in str(error)
    assert len(str(error)) < 400


async def test_without_rules_the_service_is_quoted_as_it_spoke(tmp_path: Path, server: ModelServer) -> None:
    server.script = [Scenario(status=400, error=SAID)]
    async with runtime(tmp_path, server, []) as opened:
        error = await failed(opened, RecordingSink())
    assert str(error) == f"openai/m: answered 400: the request is rejected: {SAID}"


async def test_the_message_of_a_plugin_is_under_the_rules(tmp_path: Path) -> None:
    """A provider of somebody else's may put what it was told into a sentence of its own."""
    provider = ScriptedProvider(ProviderRejected(SAID), repeat=True)
    path = write(tmp_path, manifest(guardrails={"output": RULES}))
    async with runtime_of(path, provider) as opened:
        error = await failed(opened, RecordingSink())
    assert "mail [EMAIL], card [CREDIT_CARD]" in str(error)
    assert "codename" not in str(error)


async def test_what_breaks_in_an_agent_below_is_under_the_rules_above_it(tmp_path: Path) -> None:
    """The agent below has no rules; what ends its run ends the one above, whose rules hold there."""
    provider = ScriptedProvider(ProviderRejected(SAID), repeat=True)
    swarm = {"pattern": "swarm", "agents": ["below", "beside"]}
    write(tmp_path, manifest(orchestration=swarm, guardrails={"output": RULES}))
    write(tmp_path, manifest("below"), manifest("beside"))
    async with runtime_of(tmp_path, provider) as opened:
        error = await failed(opened, sink := RecordingSink())
    assert "mail [EMAIL], card [CREDIT_CARD]" in str(error)
    assert sink.one("run.failed")["detail"] == str(error)


async def test_a_second_wrong_answer_is_quoted_as_the_rules_leave_it(tmp_path: Path) -> None:
    """What ends a run for its schema quotes the model's answer, which is under the rules as any other."""
    provider = ScriptedProvider('"ann@example.com"', repeat=True)
    write(tmp_path, manifest(output_schema={"type": "integer"}, guardrails={"output": RULES}))
    async with runtime_of(tmp_path, provider) as opened:
        error = await failed(opened, RecordingSink())
    assert "[EMAIL]" in str(error)
    assert "ann@" not in str(error)


async def test_what_is_kept_of_a_run_holds_no_more(tmp_path: Path, server: ModelServer) -> None:
    """Its row and its events over HTTP, of a durable run and of one with a key, and the files on disk."""
    server.script = [Scenario(status=400, error=SAID)]
    body, shown = {"query": "Who?", "session_id": "s"}, []
    async with client_of(opened := runtime(tmp_path, server, RULES)) as client:
        named = await client.post("/v1/agents/helper/run", json=body, headers={"Idempotency-Key": "key-1"})
        durable = await client.post("/v1/agents/helper/runs", json=body)
        for answer in (named, durable):
            run = answer.json()["run_id"]
            shown += [await ended(client, run), (await client.get(f"/v1/runs/{run}/events")).text]
        steps = [step._asdict() for step in await opened.durable.store.steps(durable.json()["run_id"])]
    assert all("[CREDIT_CARD]" in text for text in shown)
    assert not [secret for secret in SECRETS if secret in json.dumps([shown, steps], default=str)]
