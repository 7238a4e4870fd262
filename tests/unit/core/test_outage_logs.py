"""What is wrong with a provider stands in the log: once, not with every run."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from astromesh.core.circuit_breaker import BreakerRules
from astromesh.core.model_router import Health, ModelRouter, RetryRules
from astromesh.errors import ProviderError, ProviderRejected, ProviderUnauthorized, ProviderUnavailable
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import CompletionRequest, Message

ASK = CompletionRequest((Message("user", "Hello?"),))
RULES = BreakerRules(3, 60.0)


def router(clock: ManualClock, *lines: str | ProviderError) -> ModelRouter:
    """A provider that says these, and one that always answers."""
    first = ScriptedProvider(*lines, repeat=True, name="a/m")
    last = ScriptedProvider("from b", repeat=True, name="b/m")
    return ModelRouter((first, last), health=Health(RULES, clock), retries=RetryRules(tries=0))


async def told(models: ModelRouter, runs: int) -> list[tuple[str, str]]:
    with capture_logs() as lines:
        for _ in range(runs):
            assert (await models.route(ASK)).content
    assert all(line["provider"] == "a/m" for line in lines)
    return [(line["event"], line.get("error", "")) for line in lines]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_told_once_and_so_is_the_circuit_that_it_opens(status: int) -> None:
    models = router(ManualClock(), ProviderUnauthorized(f"answered {status}: refuses the key", status=status))
    assert [event for event, _ in await told(models, 20)] == ["provider_refuses", "circuit_opened"]


async def test_a_model_that_is_not_there_is_told_at_the_first_call() -> None:
    models = router(ManualClock(), ProviderUnavailable("answered 404: no such model", status=404))
    assert await told(models, 1) == [("provider_refuses", "answered 404: no such model")]


async def test_an_endpoint_that_is_dead_is_told_when_its_circuit_opens_and_again_after_a_minute() -> None:
    clock = ManualClock()
    models = router(clock, ProviderUnavailable("no connection"))
    assert await told(models, 20) == [("circuit_opened", "no connection")]
    clock.advance(60)
    assert await told(models, 20) == []  # the probe failed: nothing new


async def test_a_circuit_that_closes_is_told() -> None:
    clock = ManualClock()
    down = ProviderUnavailable("down", status=503)
    first = ScriptedProvider(down, down, down, "here again", name="a/m")
    last = ScriptedProvider("from b", repeat=True, name="b/m")
    models = ModelRouter((first, last), health=Health(RULES, clock), retries=RetryRules(tries=0))
    assert await told(models, 4) == [("circuit_opened", "down")]
    clock.advance(61)
    assert await told(models, 1) == [("circuit_closed", "")]


async def test_what_the_caller_caused_is_no_outage() -> None:
    models = router(ManualClock(), ProviderRejected("answered 400: too long", status=400))
    assert await told(models, 20) == []
