"""What a run cost: prices of providers.yaml, attempts of all its calls, the calls of agents below it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import RecordingSink
from tests.integration.agents_folder import client_of, manifest, write
from tests.platform.model_server import Call, ModelServer, Scenario

RUN = "/v1/agents/helper/run"
BODY = {"query": "go", "session_id": "s"}
PRICES = {"m": {"input_per_million": 1.0, "output_per_million": 10.0, "cached_per_million": 0.5}}
#: 600 fresh and 400 cached tokens in, 100 out
CALL_COST = (600 * 1.0 + 400 * 0.5 + 100 * 10.0) / 1_000_000
COUNTED = (1000, 100, 400)


class House(NamedTuple):
    runtime: AgentRuntime
    client: httpx.AsyncClient
    first: ModelServer
    second: ModelServer


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """An agent that may ask another one; both have two models, the first of which may fail."""
    async with ModelServer() as first, ModelServer() as second:
        providers = {
            name: {"type": "openai", "endpoint": f"{at.url}/v1", "api_key": "sk-x", "prices": PRICES}
            for name, at in (("first", first), ("second", second))
        }
        head = {"apiVersion": "astromesh/v1", "kind": "ProviderConfig"}
        (tmp_path / "providers.yaml").write_text(yaml.safe_dump({**head, "spec": {"providers": providers}}))
        model = {
            "primary": {"provider": "first", "model": "m"},
            "fallback": {"provider": "second", "model": "m"},
        }
        tools = [{"name": "ask", "type": "agent", "agent": "below"}]
        folder = write(tmp_path, manifest(model=model, tools=tools), manifest("below", model=model))
        runtime = AgentRuntime(folder, data_dir=tmp_path / "data", env={})
        async with client_of(runtime) as client:
            yield House(runtime, client, first, second)


async def test_one_call_costs_what_providers_yaml_says(house: House) -> None:
    house.first.script = [Scenario(usage=COUNTED)]
    metadata = (await house.client.post(RUN, json=BODY)).json()["metadata"]
    assert metadata["usage"]["cost_usd"] == pytest.approx(CALL_COST)
    assert (metadata["usage"]["cached_tokens"], metadata["tokens_used"]) == (400, 1100)
    assert metadata["attempts"] == []


async def test_a_run_is_the_sum_of_its_calls_and_of_the_runs_below_it(house: House) -> None:
    asks = Scenario(pieces=(), calls=(Call("c1", "ask", {"query": "x"}),), usage=COUNTED)
    house.first.script = [asks, Scenario(usage=COUNTED), Scenario(usage=COUNTED)]
    sink = RecordingSink(wants_deltas=False)
    answer = await house.runtime.run("helper", "go", "s", sinks=[sink])
    calls = [data["usage"]["cost_usd"] for data in sink.data("model.finished")]
    assert calls == [pytest.approx(CALL_COST)] * 2
    assert answer.metadata["usage"]["cost_usd"] == pytest.approx(3 * CALL_COST)
    assert answer.metadata["usage"]["input_tokens"] == 3000
    runs: Any = (await house.client.get("/v1/runs")).json()
    assert [(r["agent"], r["usage"]["input_tokens"]) for r in runs["runs"]] == [
        ("below", 1000),
        ("helper", 3000),
    ]
    assert runs["usage"]["cost_usd"] == pytest.approx(3 * CALL_COST)


async def test_attempts_are_those_of_every_call_of_the_run(house: House) -> None:
    asks = Scenario(pieces=(), calls=(Call("c1", "ask", {"query": "x"}),), usage=COUNTED)
    # the failures are those of the first model: of the run itself, of the run below, of the run itself
    house.first.script = [Scenario(status=503), Scenario(status=500), Scenario(status=401)]
    house.second.script = [asks, Scenario(), Scenario()]
    answer = (await house.client.post(RUN, json=BODY)).json()
    below, above = (await house.client.get("/v1/runs")).json()["runs"]
    statuses = [(a["provider"], a["error"], a["status"]) for a in answer["metadata"]["attempts"]]
    assert statuses == [
        ("first/m", "provider_unavailable", 503),
        ("first/m", "provider_unauthorized", 401),
    ]
    assert above["attempts"] == answer["metadata"]["attempts"]
    assert [a["status"] for a in below["attempts"]] == [500]
