"""A model call without a result is booked all the same: what its provider knows of it, else an estimate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from astromesh.core.model_router import ModelRouter
from astromesh.errors import AllProvidersFailed, ProviderError, ProviderRejected, ProviderUnavailable
from astromesh.graph.calls import call_model, call_model_silently
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import Scope
from astromesh.telemetry.events import EventStream
from astromesh.telemetry.metrics import Metrics
from astromesh.testing import RecordingSink, Reply, ScriptedProvider
from astromesh.types import CompletionRequest, Message, Usage, attach_usage, attached_usage

ASK = CompletionRequest((Message("user", "What is the answer?"),))


def costly(error: ProviderError, asked: int, said: int = 0) -> ProviderError:
    attach_usage(error, Usage(asked, said))
    return error


def scope_of(*, deltas: bool = True, ledger: RunLedger | None = None) -> Scope:
    events = EventStream("r", [RecordingSink(wants_deltas=deltas)])
    return Scope("r", events=events, ledger=ledger)


async def test_what_the_provider_knows_is_booked() -> None:
    scope = scope_of()
    cut = costly(ProviderUnavailable("cut"), 40, 2)
    with pytest.raises(ProviderUnavailable):
        await call_model(scope, ScriptedProvider(Reply(chunks=["a", "b"], error=cut)), ASK)
    assert scope.ledger.usage == Usage(40, 2)


async def test_text_that_nobody_counted_is_estimated() -> None:
    scope = scope_of()
    broken = Reply(chunks=["four letters make ", "a token"], error=ProviderUnavailable("cut"))
    with pytest.raises(ProviderUnavailable):
        await call_model(scope, ScriptedProvider(broken), ASK)
    assert scope.ledger.usage.estimated
    assert scope.ledger.usage.input_tokens > 4
    assert scope.ledger.usage.output_tokens == 7
    assert scope.ledger.usage.to_json()["estimated"] is True


async def test_a_refusal_costs_nothing() -> None:
    scope = scope_of()
    with pytest.raises(ProviderRejected):
        await call_model(scope, ScriptedProvider(ProviderRejected("no")), ASK)
    assert scope.ledger.usage == Usage()
    assert "estimated" not in scope.ledger.usage.to_json()


Ways = dict[str, Callable[[Scope, Any], Any]]
WAYS: Ways = {
    "streamed": lambda scope, model: call_model(scope, model, ASK),
    "whole": lambda scope, model: call_model(scope, model, ASK),
    "unheard": lambda scope, model: call_model_silently(scope.ledger, model, ASK),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_call_was_heard(way: str) -> None:
    begun = asyncio.Event()

    async def never(request: CompletionRequest) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    scope = scope_of(deltas=way == "streamed")
    task = asyncio.ensure_future(WAYS[way](scope, ScriptedProvider(never)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scope.ledger.usage.input_tokens > 4
    assert scope.ledger.usage.estimated


async def test_budgets_see_what_broken_calls_cost() -> None:
    ledger = RunLedger({"tokens": 100})
    with pytest.raises(ProviderUnavailable):
        await call_model_silently(ledger, ScriptedProvider(costly(ProviderUnavailable("cut"), 90, 20)), ASK)
    assert ledger.exhausted() == "tokens"


# -- over the tries of one call ------------------------------------------------------------------------------


def router(*lines: Any) -> ModelRouter:
    return ModelRouter([ScriptedProvider(line, name=f"p{n}/m") for n, line in enumerate(lines)])


async def test_the_answer_has_cost_what_the_tries_before_it_cost() -> None:
    routed = router(costly(ProviderUnavailable("late"), 40, 3), Reply("yes", usage=Usage(30, 1)))
    assert (await routed.route(ASK)).usage == Usage(70, 4)
    assert routed.healths[1].correction.factor < 5  # learned from its own count alone


async def test_where_nobody_answers_the_error_has_the_sum() -> None:
    routed = router(
        costly(ProviderRejected("late"), 40, 3), ProviderRejected("no"), costly(ProviderRejected("late"), 2)
    )
    with pytest.raises(ProviderRejected) as failed:
        await routed.route(ASK)
    assert attached_usage(failed.value) == Usage(42, 3)


async def test_a_stream_that_breaks_off_has_the_tries_before_it() -> None:
    cut = Reply(chunks=["a"], error=costly(ProviderUnavailable("cut"), 40, 3))
    routed = router(costly(ProviderUnavailable("late"), 10), cut)
    with pytest.raises(AllProvidersFailed) as failed:
        async for _ in routed.stream(ASK):
            pass
    assert attached_usage(failed.value) == Usage(50, 3)
    assert str(failed.value).startswith("The model's answer broke off. p1/m: cut. ")


async def test_who_failed_is_told_also_where_it_cost_nothing() -> None:
    sink = RecordingSink()
    scope = Scope("r", events=EventStream("r", [sink]))
    with pytest.raises(ProviderRejected):
        await call_model(scope, router(ProviderRejected("no"), ProviderRejected("nor I")), ASK)
    [told] = sink.data("model.failed")
    assert (told["provider"], told["model"], told["error"]) == ("p1", "m", "provider_rejected")
    assert [line["provider"] for line in told["attempts"]] == ["p0/m", "p1/m"]
    assert told["usage"] == Usage().to_json()


# -- in the metrics ------------------------------------------------------------------------------------------


def tokens_of(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Input and output by provider and direction."""
    counted = metrics.tally.counter("tokens")
    return {(labels[0], labels[2]): n for labels, n in counted.items() if n and labels[2] != "cached"}


async def asked(model: ModelRouter, *, deltas: bool = False) -> tuple[Metrics, Scope]:
    metrics = Metrics()
    scope = Scope("r", events=EventStream("r", [metrics, RecordingSink(wants_deltas=deltas)]))
    with suppress(AllProvidersFailed):
        await call_model(scope, model, ASK)
    return metrics, scope


async def test_what_a_failed_try_has_cost_is_its_own_models() -> None:
    routed = router(costly(ProviderUnavailable("late"), 40, 3), Reply("yes", usage=Usage(30, 1)))
    metrics, scope = await asked(routed)
    assert tokens_of(metrics) == {
        ("p0", "input"): 40, ("p0", "output"): 3, ("p1", "input"): 30, ("p1", "output"): 1,
    }  # fmt: skip
    assert sum(tokens_of(metrics).values()) == scope.ledger.usage.total_tokens


async def test_a_call_without_an_answer_is_counted_too() -> None:
    cut = Reply(chunks=["a"], error=costly(ProviderUnavailable("cut", retryable=False), 40, 3))
    metrics, scope = await asked(router(costly(ProviderUnavailable("late"), 10), cut), deltas=True)
    by = tokens_of(metrics)
    assert (by["p0", "input"], by["p1", "input"]) == (10, 40)
    assert sum(by.values()) == scope.ledger.usage.total_tokens


async def test_text_that_nobody_counted_is_the_last_models() -> None:
    metrics, scope = await asked(
        router(Reply(chunks=["some words"], error=ProviderUnavailable("cut"))), deltas=True
    )
    assert sum(tokens_of(metrics).values()) == scope.ledger.usage.total_tokens > 0
    assert {provider for provider, _ in tokens_of(metrics)} == {"p0"}
