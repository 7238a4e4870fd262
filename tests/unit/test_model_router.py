"""The model router: who is asked, who is asked next, what is retried, what the caller is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from astromesh.abc.provider import Capabilities
from astromesh.core.circuit_breaker import BreakerRules
from astromesh.core.health import Health
from astromesh.core.model_router import ModelRouter, RetryRules
from astromesh.errors import (
    AllProvidersFailed,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from astromesh.node.scope import Scope
from astromesh.testing import ManualClock, Reply, ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, Delta, Message, Usage

ASK = CompletionRequest((Message("user", "Hello, who is there?"),))


def down(status: int = 503) -> ProviderUnavailable:
    return ProviderUnavailable("down", status=status)


def model(*lines, name="a/m", **more) -> ScriptedProvider:
    return ScriptedProvider(*lines, repeat=True, name=name, **more)


def router(
    *providers, clock: ManualClock | None = None, rules: BreakerRules | None = None, **more
) -> ModelRouter:
    health = Health(rules or BreakerRules(), clock or ManualClock(jump=True))
    return ModelRouter(providers, health=health, chance=lambda: 0.5, **more)


async def streamed(stream) -> tuple[str, CompletionResult | None, Exception | None]:
    text, result, error = "", None, None
    try:
        async for piece in stream:
            if isinstance(piece, Delta):
                text += piece.content
            else:
                result = piece
    except (ProviderError, AllProvidersFailed) as raised:
        error = raised
    return text, result, error


# -- order and fallback --------------------------------------------------------------------------------------


async def test_the_primary_answers_and_nobody_else_is_asked():
    spare = model("spare", name="b/m")
    result = await router(model("Hi"), spare).route(ASK)
    assert (result.content, result.attempts) == ("Hi", ())
    assert spare.requests == []


@pytest.mark.parametrize(
    "error",
    [
        down(),
        ProviderTimeout("slow"),
        ProviderRateLimited("busy", status=429),
        ProviderUnauthorized("key", status=401),
        ProviderRejected("bad", status=400),
    ],
)
async def test_whatever_fails_the_next_provider_is_asked_and_the_attempt_is_told(error):
    result = await router(model(error), model("Hi", name="b/m")).route(ASK)
    assert result.content == "Hi"
    assert result.attempts == ({"provider": "a/m", "error": error.code, "status": error.status},)


async def test_when_all_fail_the_error_says_who_failed_how():
    with pytest.raises(AllProvidersFailed) as raised:
        await router(model(down()), model(ProviderTimeout("slow"), name="b/m")).route(ASK)
    assert "a/m: down" in str(raised.value)
    assert "b/m: slow" in str(raised.value)


async def test_when_everybody_calls_the_request_wrong_it_is():
    with pytest.raises(ProviderRejected, match="too long"):
        await router(model(ProviderRejected("too long")), model(ProviderRejected("no"), name="b/m")).route(
            ASK
        )


async def test_without_providers_there_is_no_answer():
    with pytest.raises(AllProvidersFailed):
        await router().route(ASK)


async def test_capability_match_says_what_no_model_has():
    with pytest.raises(ProviderRejected, match="structured output"):
        await router(model("x", capabilities=Capabilities(json=False)), strategy="capability_match").route(
            CompletionRequest(ASK.messages, output_schema={"type": "object"})
        )


async def test_a_provider_that_cannot_keep_the_schema_is_skipped_where_another_can():
    plain = model("text", capabilities=Capabilities(json=False))
    request = CompletionRequest(ASK.messages, output_schema={"type": "object"})
    assert (await router(plain, model("{}", name="b/m")).route(request)).content == "{}"
    assert (await router(plain).route(request)).content == "text"


async def test_cost_decides_where_it_is_asked_to():
    dear, cheap = model("dear", cost=0.5), model("cheap", name="b/m", cost=0.1)
    assert (await router(dear, cheap, strategy="cost_optimized").route(ASK)).content == "cheap"


async def test_latency_is_learned_from_the_calls_themselves():
    async def slowly(_):
        await asyncio.sleep(0.02)
        return "slow"

    routed = router(model(slowly), model("fast", name="b/m"), strategy="latency_optimized")
    said = [(await routed.route(ASK)).content for _ in range(4)]
    assert said == ["slow", "fast", "fast", "fast"]


async def test_a_role_has_its_own_models():
    planner = router(model("plan", name="b/m"))
    routed = router(model("talk"), roles={"planner": planner})
    assert (await routed.route(CompletionRequest(ASK.messages, role="planner"))).content == "plan"
    assert (await routed.route(CompletionRequest(ASK.messages, role="unknown"))).content == "talk"
    assert routed.for_role("planner") is planner


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="cost_optimized"):
        router(strategy="cheapest")


# -- the circuit ---------------------------------------------------------------------------------------------


async def test_a_provider_that_failed_three_times_is_left_alone_for_sixty_seconds():
    clock, bad = ManualClock(), model(down())
    routed = router(bad, model("Hi", name="b/m"), clock=clock)
    for _ in range(5):
        last = await routed.route(ASK)
    assert len(bad.requests) == 3
    assert last.attempts == ({"provider": "a/m", "error": "circuit_open", "status": 0},)
    clock.advance(60)
    await routed.route(ASK)
    assert len(bad.requests) == 4


async def test_a_good_probe_closes_the_circuit():
    clock, healing = ManualClock(), model(down(), down(), down(), "Back")
    routed = router(healing, model("spare", name="b/m"), clock=clock)
    for _ in range(3):
        await routed.route(ASK)
    clock.advance(60)
    assert [(await routed.route(ASK)).content for _ in range(2)] == ["Back", "Back"]


async def test_half_open_lets_exactly_one_call_through():
    clock, gate = ManualClock(), asyncio.Event()

    async def wait(_):
        await gate.wait()
        return "Back"

    probed = model(down(), down(), down(), wait)
    routed = router(probed, model("spare", name="b/m"), clock=clock)
    for _ in range(3):
        await routed.route(ASK)
    clock.advance(60)
    calls = [asyncio.create_task(routed.route(ASK)) for _ in range(10)]
    await asyncio.sleep(0)
    gate.set()
    said = [(await call).content for call in calls]
    assert said.count("Back") == 1
    assert len(probed.requests) == 4


async def test_a_cancelled_probe_does_not_stay_out_for_ever():
    clock = ManualClock()

    async def hang(_):
        await asyncio.Event().wait()

    routed = router(model(down(), down(), down(), hang, "Back"), model("spare", name="b/m"), clock=clock)
    for _ in range(3):
        await routed.route(ASK)
    clock.advance(60)
    probe = asyncio.create_task(routed.route(ASK))
    await asyncio.sleep(0)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert (await routed.route(ASK)).content == "Back"


async def test_what_the_caller_caused_never_opens_the_circuit():
    bad = model(ProviderRejected("no"))
    routed = router(bad, model("Hi", name="b/m"))
    for _ in range(9):
        await routed.route(ASK)
    assert len(bad.requests) == 9


async def test_a_429_holds_the_provider_at_least_as_long_as_it_asked():
    clock = ManualClock()
    busy = model(ProviderRateLimited("busy", status=429, retry_after=20), "Hi")
    routed = router(busy, model("spare", name="b/m"), clock=clock)
    await routed.route(ASK)
    clock.advance(19.9)
    assert (await routed.route(ASK)).content == "spare"
    clock.advance(4.2)
    assert (await routed.route(ASK)).content == "Hi"


async def test_agents_share_the_circuit_of_one_model_but_not_of_another_endpoint():
    health = Health(clock=ManualClock(jump=True))
    first, second, elsewhere = model(down()), model("Hi"), model("Hi")
    elsewhere.endpoint = "http://other"  # type: ignore[attr-defined]
    spare = model("spare", name="b/m")
    for _ in range(3):
        await ModelRouter([first, spare], health=health).route(ASK)
    assert (await ModelRouter([second, spare], health=health).route(ASK)).content == "spare"
    assert (await ModelRouter([elsewhere, spare], health=health).route(ASK)).content == "Hi"


async def test_health_shows_state_latency_and_failures():
    routed = router(model(down()), model("Hi", name="b/m"))
    for _ in range(3):
        await routed.route(ASK)
    bad, good = routed.health.snapshot()
    assert (bad["name"], bad["circuit"], bad["failures"], bad["last_error"]) == (
        "a/m",
        "open",
        3,
        "provider_unavailable",
    )
    assert bad["retry_in_seconds"] == 60
    assert (good["circuit"], good["calls"], good["failures"]) == ("closed", 3, 0)


# -- retries -------------------------------------------------------------------------------------------------


async def test_the_last_provider_left_is_asked_again_after_a_growing_pause():
    clock = ManualClock(jump=True)
    result = await router(model(down(), down(), "Hi"), clock=clock).route(ASK)
    assert result.content == "Hi"
    assert len(result.attempts) == 2
    assert clock.slept == [0.25, 0.5]


async def test_the_repeated_tries_of_one_call_are_one_failure_to_the_circuit():
    bad = model(down())
    routed = router(bad)
    for _ in range(2):
        with pytest.raises(AllProvidersFailed):
            await routed.route(ASK)
    assert routed.health.snapshot()[0]["circuit"] == "closed"
    assert len(bad.requests) == 6


@pytest.mark.parametrize(
    "error", [ProviderTimeout("slow"), ProviderUnauthorized("key"), ProviderRejected("bad")]
)
async def test_what_cannot_heal_is_not_tried_again(error):
    bad = model(error)
    with pytest.raises((AllProvidersFailed, ProviderRejected)):
        await router(bad).route(ASK)
    assert len(bad.requests) == 1


async def test_one_budget_of_retries_serves_the_whole_run():
    scope, bad = Scope(retries=3), model(down())
    routed = router(bad, rules=BreakerRules(failure_threshold=99))
    for _ in range(5):
        with pytest.raises(AllProvidersFailed):
            await routed.route(ASK, take_retry=scope.take_retry)
    assert len(bad.requests) == 5 + 3


async def test_a_short_retry_after_is_waited_for_as_a_floor_and_a_long_one_is_not():
    clock = ManualClock(jump=True)
    soon = model(ProviderRateLimited("busy", retry_after=2), "Hi")
    assert (await router(soon, clock=clock).route(ASK)).content == "Hi"
    assert clock.slept[0] >= 2
    with pytest.raises(AllProvidersFailed):
        await router(model(ProviderRateLimited("busy", retry_after=90), "Hi"), clock=clock).route(ASK)


async def test_runs_beside_a_throttled_one_wait_for_the_same_provider():
    clock = ManualClock(jump=True)
    routed = router(
        model(ProviderRateLimited("busy", retry_after=2), "Hi"), clock=clock, retries=RetryRules(tries=5)
    )
    said = await asyncio.gather(*(routed.route(ASK) for _ in range(3)))
    assert [result.content for result in said] == ["Hi", "Hi", "Hi"]


# -- streams -------------------------------------------------------------------------------------------------


async def test_deltas_pass_through_one_by_one_and_the_result_comes_last():
    deltas = [piece async for piece in router(model(Reply(chunks=["a", "b ", "c"]))).stream(ASK)]
    assert deltas[:-1] == [Delta("a"), Delta("b "), Delta("c")]
    assert isinstance(deltas[-1], CompletionResult)


async def test_before_the_first_delta_another_provider_takes_over():
    text, result, _ = await streamed(router(model(down()), model("Hi", name="b/m")).stream(ASK))
    assert text == "Hi"
    assert result is not None
    assert result.attempts[0]["provider"] == "a/m"


async def test_after_the_first_delta_the_error_surfaces_with_the_text_kept():
    spare = model("spare", name="b/m")
    text, result, error = await streamed(
        router(model(Reply(chunks=["Hel"], error=down())), spare).stream(ASK)
    )
    assert (text, result) == ("Hel", None)
    assert isinstance(error, AllProvidersFailed)
    assert spare.requests == []


async def test_leaving_a_stream_closes_the_providers_own():
    talking = model("one two three")
    async with aclosing(router(talking).stream(ASK)) as pieces:
        async for _ in pieces:
            break
    assert talking.closed_streams == 1


async def test_a_provider_that_cannot_stream_answers_in_one_piece():
    whole = model("one two", capabilities=Capabilities(streaming=False))
    pieces = [piece async for piece in router(whole).stream(ASK)]
    assert pieces[0] == Delta("one two")
    assert len(pieces) == 2


# -- learning ------------------------------------------------------------------------------------------------


async def test_reported_usage_corrects_what_is_estimated():
    routed = router(model(Reply("Hi", usage=Usage(input_tokens=30))))
    for _ in range(3):
        await routed.route(ASK)
    assert routed.monitors[0].correction.apply(9) == 30
