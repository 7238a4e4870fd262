"""The model router: who is asked, who is asked next, what is retried, what the caller is told."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import aclosing
from time import perf_counter

import pytest
from msgspec.structs import replace

from astromesh.core.circuit_breaker import FIRST_AT_ONCE, BreakerRules
from astromesh.core.model_router import Health, ModelRouter, RetryRules
from astromesh.errors import (
    AllProvidersFailed,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ProvidersRateLimited,
    ProviderTimeout,
    ProviderUnauthorized,
    ProviderUnavailable,
    StoreUnavailable,
)
from astromesh.graph.scope import Scope
from astromesh.providers.base import Capabilities
from astromesh.testing import ManualClock, Reply, ScriptedProvider
from astromesh.tokens import estimate_request
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    Message,
    StreamBroken,
    ToolSpec,
    Usage,
    attach_usage,
    attached_attempts,
    attached_usage,
)

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
            elif isinstance(piece, CompletionResult):
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
    assert result.attempts == ({"provider": "a/m", "error": error.code, "status": error.upstream_status},)


async def test_when_all_fail_the_error_says_who_failed_how():
    with pytest.raises(AllProvidersFailed) as raised:
        await router(model(down()), model(ProviderTimeout("slow"), name="b/m")).route(ASK)
    assert "a/m: down" in str(raised.value)
    assert "b/m: slow" in str(raised.value)


async def test_when_everybody_calls_the_request_wrong_it_is():
    first, second = ProviderRejected("too long", status=413), ProviderRejected("no", status=400)
    with pytest.raises(ProviderRejected, match=r"^a/m: too long$") as raised:
        await router(model(first), model(second, name="b/m")).route(ASK)
    assert (raised.value.provider, raised.value.upstream_status) == ("a/m", 413)


async def test_without_providers_there_is_no_answer():
    with pytest.raises(AllProvidersFailed):
        await router().route(ASK)


async def test_capability_match_says_what_no_model_has():
    with pytest.raises(ProviderRejected, match="structured output"):
        await router(model("x", capabilities=Capabilities(json=False)), strategy="capability_match").route(
            CompletionRequest(ASK.messages, output_schema={"type": "object"})
        )


async def test_all_that_no_model_has_is_named():
    small = model("x", capabilities=Capabilities(tools=False, context_window=1))
    request = CompletionRequest(ASK.messages, (ToolSpec("t"),))
    with pytest.raises(ProviderRejected, match="missing: context window, tools\\."):
        await router(small, strategy="capability_match").route(request)


async def test_a_provider_that_cannot_keep_the_schema_is_skipped_where_another_can():
    plain = model("text", capabilities=Capabilities(json=False))
    request = CompletionRequest(ASK.messages, output_schema={"type": "object"})
    assert (await router(plain, model("{}", name="b/m")).route(request)).content == "{}"
    assert (await router(plain).route(request)).content == "text"


async def test_cost_decides_where_it_is_asked_to():
    dear, cheap = model("dear", cost=0.5), model("cheap", name="b/m", cost=0.1)
    assert (await router(dear, cheap, strategy="cost_optimized").route(ASK)).content == "cheap"


async def test_round_robin_takes_turns_from_the_primary_on():
    routed = router(*(model(name[0], name=name) for name in ("a/m", "b/m", "c/m")), strategy="round_robin")
    assert [(await routed.route(ASK)).content for _ in range(4)] == ["a", "b", "c", "a"]


async def test_latency_is_learned_from_the_calls_themselves():
    async def slowly(_):
        await asyncio.sleep(0.005)
        return "slow"

    routed = router(model(slowly), model("fast", name="b/m"), strategy="latency_optimized")
    assert [(await routed.route(ASK)).content for _ in range(2)] == ["slow", "fast"]
    slow, fast = (health.latency_ms for health in routed.healths)
    assert slow > 4
    # on a busy machine the fast one may have waited longer
    assert (await routed.route(ASK)).content == ("fast" if fast < slow else "slow")


async def test_a_role_has_its_own_models():
    planner = router(model("plan", name="b/m"))
    routed = router(model("talk"), roles={"planner": planner})
    assert (await routed.route(CompletionRequest(ASK.messages, role="planner"))).content == "plan"
    assert (await routed.route(CompletionRequest(ASK.messages, role="unknown"))).content == "talk"
    assert routed.roles["planner"] is planner


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="'cheapest'; known: priority, cost_optimized, "):
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


async def test_a_probe_whose_cost_cannot_be_reserved_does_not_stay_out_for_ever():
    """The first model fails and costs something; then the store of budgets is away."""
    clock, paid = ManualClock(), ProviderRejected("no")
    attach_usage(paid, Usage(10, 1))
    healing = model(down(), down(), down(), "Back", name="b/m")
    routed = router(model(paid), healing, clock=clock, retries=RetryRules(0))

    async def renew(request: CompletionRequest, usage: Usage) -> CompletionRequest:
        raise StoreUnavailable("The database is away.")

    for _ in range(3):
        with pytest.raises(AllProvidersFailed):
            await routed.route(ASK)
    clock.advance(60)
    with pytest.raises(StoreUnavailable) as raised:
        await routed.route(ASK, renew=renew)
    assert attached_usage(raised.value) == Usage(10, 1)
    assert (await routed.route(ASK)).content == "Back"


async def test_a_pause_ends_without_a_probe_and_with_the_count_from_before():
    """A 429 and a 500 in a row are one failure: they do not take a model out."""
    clock = ManualClock()
    busy = model(down(), ProviderRateLimited("busy", status=429, retry_after=20), down(), "Hi")
    routed = router(busy, model("spare", name="b/m"), clock=clock)
    for _ in range(2):
        await routed.route(ASK)
    (paused, _) = routed.health.snapshot()
    assert (paused["circuit"], paused["failures_in_a_row"], paused["retry_in_seconds"]) == ("closed", 1, 22.0)
    clock.advance(22)
    assert [(await routed.route(ASK)).content for _ in range(2)] == ["spare", "Hi"]
    assert routed.health.snapshot()[0]["failures_in_a_row"] == 0


async def test_another_status_with_a_time_to_wait_is_a_failure_and_holds_the_provider_for_it():
    clock = ManualClock()
    ill = model(ProviderUnavailable("down", status=503, retry_after=20), "Hi")
    routed = router(ill, model("spare", name="b/m"), clock=clock)
    await routed.route(ASK)
    assert routed.health.snapshot()[0]["failures_in_a_row"] == 1
    clock.advance(21.9)
    assert (await routed.route(ASK)).attempts[0]["error"] == "circuit_open"
    clock.advance(0.1)
    assert (await routed.route(ASK)).content == "Hi"


async def test_three_failures_that_each_ask_for_a_pause_open_the_circuit():
    clock = ManualClock()
    ill = model(ProviderUnavailable("down", status=503, retry_after=20))
    routed = router(ill, model("spare", name="b/m"), clock=clock)
    for _ in range(3):
        await routed.route(ASK)
        clock.advance(22)
    assert routed.health.snapshot()[0]["circuit"] == "open"


async def test_after_a_pause_waiting_calls_return_a_few_at_a_time():
    clock = ManualClock()
    active, most = 0, []

    async def count(_):
        nonlocal active
        active += 1
        most.append(active)
        await clock.sleep(0.01)
        active -= 1
        return "Hi"

    routed = router(model(ProviderRateLimited("busy", retry_after=2), count), clock=clock)
    calls = [asyncio.create_task(routed.route(ASK)) for _ in range(40)]
    await clock.run_for(12)
    assert [call.result().content for call in calls] == ["Hi"] * 40
    assert all(running <= FIRST_AT_ONCE + earlier for earlier, running in enumerate(most))
    assert max(most) > FIRST_AT_ONCE


@pytest.mark.parametrize("status", [429, 503])
async def test_whatever_its_tries_one_failing_call_is_one_failure(status):
    """The first try counts or not, as its status says; of the others, the first that fails does."""
    first = ProviderRateLimited if status == 429 else ProviderUnavailable
    bad = model(first("busy", status=status, retry_after=1), down(500), down(500))
    routed = router(bad)
    with pytest.raises(AllProvidersFailed):
        await routed.route(ASK)
    assert len(bad.requests) == 3
    (seen,) = routed.health.snapshot()
    assert (seen["circuit"], seen["failures_in_a_row"]) == ("closed", 1)


async def test_where_every_provider_limits_its_rate_the_error_names_the_first_that_is_back():
    clock = ManualClock()
    models = [
        model(ProviderRateLimited("busy", status=429, retry_after=wait), name=name)
        for name, wait in (("a/m", 90), ("b/m", 30))
    ]
    routed = router(*models, clock=clock)
    for waited, left in ((0, 33.0), (3, 30.0)):  # a tenth is jitter; then both are paused and not called
        clock.advance(waited)
        with pytest.raises(ProvidersRateLimited) as raised:
            await routed.route(ASK)
        assert raised.value.retry_after == pytest.approx(left)
    assert [len(m.requests) for m in models] == [1, 1]
    assert [f.code for f in raised.value.failures] == ["provider_paused"] * 2


@pytest.mark.parametrize("other", [down(), ProviderTimeout("slow"), ProviderUnauthorized("key")])
async def test_where_one_provider_failed_otherwise_the_error_is_the_usual_one(other):
    busy = ProviderRateLimited("busy", status=429, retry_after=90)
    with pytest.raises(AllProvidersFailed) as raised:
        await router(model(busy), model(other, name="b/m"), retries=RetryRules(tries=0)).route(ASK)
    assert raised.type is AllProvidersFailed


async def test_a_provider_that_is_held_for_a_failure_is_not_one_that_limits_its_rate():
    routed = router(model(ProviderUnavailable("down", status=503, retry_after=90)))
    for _ in range(2):
        with pytest.raises(AllProvidersFailed) as raised:
            await routed.route(ASK)
        assert raised.type is AllProvidersFailed


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


@pytest.mark.parametrize(
    "error", [ProviderTimeout("slow"), ProviderUnauthorized("key"), ProviderRejected("bad")]
)
async def test_what_could_heal_and_now_cannot_is_not_tried_again(error):
    bad = model(down(), error, "Hi")
    with pytest.raises(AllProvidersFailed):
        await router(bad).route(ASK)
    assert len(bad.requests) == 2


async def test_a_spare_that_cannot_heal_does_not_keep_the_primary_from_its_second_try():
    result = await router(model(down(), "Hi"), model(ProviderRejected("bad"), name="b/m")).route(ASK)
    assert (result.content, len(result.attempts)) == ("Hi", 2)


async def test_a_call_beyond_the_first_ones_after_a_pause_waits_for_its_turn():
    clock, gate = ManualClock(), asyncio.Event()

    async def wait(_):
        await gate.wait()
        return "Back"

    routed = router(model(ProviderRateLimited("busy", retry_after=2.0), wait), clock=clock)
    calls = [asyncio.create_task(routed.route(ASK)) for _ in range(3)]
    await clock.run_for(2.6)
    paused = [pytest.approx(2.0 * 1.1), *[pytest.approx(2.0 * 1.1 * 1.1)] * 2]
    assert clock.slept == [*paused, 0.25]
    await clock.run_for(5)
    gate.set()
    await clock.run_for(1)
    assert [(await call).content for call in calls] == ["Back"] * 3


async def half_open(answer, **more) -> tuple[ModelRouter, ManualClock, ScriptedProvider]:
    """A router whose only model has failed; its time is over, and the next call is the probe."""
    clock, healing = ManualClock(), model(down(), answer)
    routed = router(healing, clock=clock, rules=BreakerRules(1), **more)
    first = asyncio.create_task(routed.route(ASK))
    await clock.run_for(1)
    with pytest.raises(AllProvidersFailed):
        await first
    clock.advance(60)
    return routed, clock, healing


async def test_calls_beside_the_probe_of_the_only_model_are_answered_when_it_is_back():
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()
        return "Back"

    scope = Scope(retries=9)
    routed, clock, healing = await half_open(wait)
    calls = [asyncio.create_task(routed.route(ASK, take_retry=scope.take_retry)) for _ in range(10)]
    await clock.run_for(6)
    assert len(healing.requests) == 2  # the one that failed, and the probe
    gate.set()
    await clock.run_for(1)
    said = [(await call).content for call in calls]
    assert said == ["Back"] * 10
    assert not scope.take_retry()  # one for each


async def test_calls_beside_a_probe_that_fails_fail_with_it():
    gate = asyncio.Event()

    async def wait(_):
        await gate.wait()
        raise down()

    routed, clock, healing = await half_open(wait)
    calls = [asyncio.create_task(routed.route(ASK)) for _ in range(3)]
    await clock.run_for(6)
    gate.set()
    await clock.run_for(2)
    for call in calls:
        with pytest.raises(AllProvidersFailed):
            await call
    assert len(healing.requests) == 2


async def test_a_probe_that_does_not_come_back_is_not_waited_for_any_longer():
    async def hang(_):
        await asyncio.Event().wait()

    routed, clock, _ = await half_open(hang)
    probe, beside = (asyncio.create_task(routed.route(ASK)) for _ in range(2))
    await clock.run_for(11)
    with pytest.raises(AllProvidersFailed, match="another call is probing"):
        await beside
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)


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


@pytest.mark.parametrize(("chance", "pauses"), [(0.0, [0.125, 0.25]), (1.0, [0.375, 0.75])])
async def test_a_pause_is_half_of_its_length_to_one_and_a_half(chance, pauses):
    clock = ManualClock(jump=True)
    routed = ModelRouter([model(down(), down(), "Hi")], health=Health(clock=clock), chance=lambda: chance)
    await routed.route(ASK)
    assert clock.slept == pauses


async def test_the_longest_wait_is_still_waited_for():
    clock = ManualClock(jump=True)
    rules = RetryRules(tries=1, backoff=10.0, max_wait=10.0)
    assert (await router(model(down(), "Hi"), clock=clock, retries=rules).route(ASK)).content == "Hi"
    assert clock.slept == [10.0]


async def test_of_several_open_circuits_the_first_is_waited_for():
    """Its time is the floor of the wait, with the jitter on top."""
    clock = ManualClock(jump=True)
    first, second = (
        model(ProviderRateLimited("busy", retry_after=wait), "Hi", name=name)
        for name, wait in (("a/m", 2.0), ("b/m", 4.0))
    )
    routed = router(first, second, clock=clock, retries=RetryRules(tries=0))
    with pytest.raises(AllProvidersFailed):
        await routed.route(ASK)
    routed.retries = RetryRules()
    assert (await routed.route(ASK)).content == "Hi"
    assert (len(first.requests), len(second.requests)) == (2, 1)
    assert clock.slept == [pytest.approx(2.0 * 1.1 * 1.1)]


async def test_an_open_circuit_says_for_how_long():
    clock = ManualClock()
    routed = router(model(down()), clock=clock, rules=BreakerRules(1), retries=RetryRules(tries=0))
    clock.advance(5)
    with pytest.raises(AllProvidersFailed, match="down"):
        await routed.route(ASK)
    clock.advance(10)
    with pytest.raises(AllProvidersFailed, match="a/m: its circuit is open for another 50 s"):
        await routed.route(ASK)


async def test_beside_a_probe_there_is_no_time_to_name():
    clock, gate = ManualClock(), asyncio.Event()

    async def wait(_):
        await gate.wait()
        return "Back"

    routed = router(model(down(), wait), clock=clock, rules=BreakerRules(1), retries=RetryRules(tries=0))
    with pytest.raises(AllProvidersFailed):
        await routed.route(ASK)
    clock.advance(99)
    probe = asyncio.create_task(routed.route(ASK))
    await asyncio.sleep(0)
    with pytest.raises(AllProvidersFailed, match="a/m: another call is probing whether it works again"):
        await routed.route(ASK)
    gate.set()
    assert (await probe).content == "Back"


# -- calls that are given up ---------------------------------------------------------------------------------


async def given_up(calling, begun: asyncio.Event) -> asyncio.CancelledError:
    """Cancels a call when its provider has begun; answers the cancellation as it left the router."""

    async def caught():
        try:
            await calling
        except asyncio.CancelledError as cancelled:
            return cancelled

    task = asyncio.create_task(caught())
    await begun.wait()
    task.cancel()
    return await task


async def all_of(stream) -> None:
    async for _ in stream:
        pass


def hanging(usage: Usage | None = None):
    """A line that never answers, and what it knows that it has cost when it is given up."""
    begun = asyncio.Event()

    async def hang(_):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            if usage is not None:
                attach_usage(cancelled, usage)
            raise

    return hang, begun


def costly_down(tokens: int) -> ProviderUnavailable:
    error = down()
    attach_usage(error, Usage(tokens))
    return error


WAYS = [ModelRouter.route, lambda routed, request: all_of(routed.stream(request))]


@pytest.mark.parametrize("way", WAYS, ids=["route", "stream"])
@pytest.mark.parametrize(
    "known", [None, Usage(7, 1)], ids=["nobody has counted it", "the provider has counted it"]
)
async def test_a_call_that_was_given_up_has_cost_what_all_its_tries_have(way, known):
    hang, begun = hanging(known)
    routed = router(model(costly_down(40)), model(hang, name="b/m"))
    error = await given_up(way(routed, ASK), begun)
    now = known or Usage(estimate_request(ASK), estimated=True)
    assert attached_usage(error) == Usage(40) + now
    assert attached_attempts(error) == [
        {"provider": "a/m", "error": "provider_unavailable", "status": 503, "usage": Usage(40).to_json()},
        {"provider": "b/m", "error": "cancelled", "status": 0, "usage": now.to_json()},
    ]


@pytest.mark.parametrize(("error", "cost"), [(costly_down(40), Usage(40)), (down(), Usage())])
async def test_a_call_that_was_given_up_between_two_tries_has_cost_what_the_first_has(error, cost):
    clock = ManualClock()
    calling = asyncio.create_task(router(model(error), clock=clock).route(ASK))
    while not clock.sleepers:
        await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError) as given:
        await calling
    assert attached_usage(given.value) == cost
    assert [line["error"] for line in attached_attempts(given.value)] == ["provider_unavailable"]


async def test_a_first_try_that_was_given_up_is_charged_by_who_asked():
    hang, begun = hanging()
    error = await given_up(router(model(hang)).route(ASK), begun)
    assert attached_usage(error) is None
    assert [line["error"] for line in attached_attempts(error)] == ["cancelled"]


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


async def test_a_reader_to_whom_nothing_has_left_gets_the_next_ones_answer():
    attach_usage(cut := ProviderUnavailable("cut"), Usage(7, 1))
    routed = router(
        model(Reply(chunks=("He",), error=cut)), model(Reply("Hi", usage=Usage(2, 1)), name="b/m")
    )
    said: list[str] = []
    result = None
    async for piece in routed.stream(ASK):
        if isinstance(piece, StreamBroken):
            piece.discarded = True
            said.clear()
        elif isinstance(piece, Delta):
            said.append(piece.content)
        else:
            result = piece
    assert result is not None
    assert (said, result.content, result.usage) == (["Hi"], "Hi", Usage(9, 2))
    assert [attempt["provider"] for attempt in result.attempts] == ["a/m"]


class Mute(ScriptedProvider):
    """Its streams end at once, without a result."""

    async def stream(self, request):
        return
        yield


async def test_a_stream_without_a_result_has_failed():
    text, result, _ = await streamed(router(Mute(name="a/m"), model("Hi", name="b/m")).stream(ASK))
    assert result is not None
    assert (text, result.attempts[0]["error"]) == ("Hi", "provider_unavailable")
    _, _, error = await streamed(router(Mute(name="a/m")).stream(ASK))
    assert "a/m: The stream ended without a result." in str(error)


async def test_a_stream_has_its_roles_model():
    routed = router(model("talk"), roles={"planner": router(model("plan", name="b/m"))})
    text, _, _ = await streamed(routed.stream(CompletionRequest(ASK.messages, role="planner")))
    assert text == "plan"


async def test_a_stream_takes_its_retries_from_the_runs_budget():
    bad = model(down(), "Hi")
    _, _, error = await streamed(router(bad).stream(ASK, take_retry=lambda: False))
    assert isinstance(error, AllProvidersFailed)
    assert len(bad.requests) == 1


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


# -- latency -------------------------------------------------------------------------------------------------


async def after_a_moment(answer):
    await asyncio.sleep(0.005)
    return answer


async def test_a_call_took_the_time_from_its_beginning_to_its_answer():
    routed = router(model(lambda _: after_a_moment("Hi")))
    began = perf_counter()
    result = await routed.route(ASK)
    assert 2.0 < result.latency_ms <= (perf_counter() - began) * 1000
    assert routed.healths[0].latency_ms == result.latency_ms


async def test_a_provider_that_ran_out_of_time_was_as_slow_as_that():
    routed = router(model(lambda _: after_a_moment(ProviderTimeout("slow"))))
    began = perf_counter()
    with pytest.raises(AllProvidersFailed):
        await routed.route(ASK)
    assert 2.0 < routed.healths[0].latency_ms <= (perf_counter() - began) * 1000


class Timed(ScriptedProvider):
    """Names the time that it took."""

    async def complete(self, request):
        return replace(await super().complete(request), latency_ms=7.0)


async def test_a_latency_that_the_provider_names_stays_also_behind_a_failure():
    assert (await router(Timed("Hi")).route(ASK)).latency_ms == 7.0
    result = await router(model(down()), Timed("Hi", name="b/m")).route(ASK)
    assert (result.latency_ms, len(result.attempts)) == (7.0, 1)


async def test_every_try_counts_as_a_call():
    routed = router(model(down(), "Hi", "Hi"))
    for _ in range(2):
        await routed.route(ASK)
    assert (routed.healths[0].calls, routed.healths[0].failures) == (3, 1)
    routed = router(model(down()), rules=BreakerRules(99))
    with pytest.raises(AllProvidersFailed):
        await routed.route(ASK)
    assert (routed.healths[0].calls, routed.healths[0].failures) == (3, 3)


# -- learning ------------------------------------------------------------------------------------------------


async def test_reported_usage_corrects_what_is_estimated():
    routed = router(model(Reply("Hi", usage=Usage(input_tokens=30))))
    for _ in range(3):
        await routed.route(ASK)
    assert routed.healths[0].correction.apply(9) == 30


async def test_the_first_counts_teach_and_then_one_of_sixteen():
    routed = router(model("Hi"))
    learned = []
    for _ in range(33):
        await routed.route(ASK)
        learned.append(routed.healths[0].correction.reports)
    assert [call for call in range(1, 33) if learned[call] > learned[call - 1]] == [1, 2, 3, 15, 31]


class Metered(ScriptedProvider):
    """Has a price for each message."""

    def estimated_cost(self, request):
        return self._cost * len(request.messages)


async def test_a_price_is_of_the_request_as_the_model_counts_it():
    wordy = Metered(Reply("wordy", usage=Usage(input_tokens=30)), repeat=True, name="b/m", cost=0.2)
    routed = router(model("plain", cost=0.3), wordy, strategy="cost_optimized")
    assert [(await routed.route(ASK)).content for _ in range(2)] == ["wordy", "plain"]
    one = CompletionRequest((Message("user", "a"), Message("user", "b")))
    routed = router(
        model("flat", cost=0.3), Metered("metered", name="b/m", cost=0.2), strategy="cost_optimized"
    )
    assert (await routed.route(one)).content == "flat"


async def test_a_window_is_measured_as_the_model_counts():
    small = Capabilities(context_window=2 * estimate_request(ASK))
    wordy = model(Reply("small", usage=Usage(input_tokens=4 * estimate_request(ASK))), capabilities=small)
    routed = router(wordy, model("large", name="b/m"))
    assert [(await routed.route(ASK)).content for _ in range(2)] == ["small", "large"]


async def test_a_slow_model_is_tried_again_after_fifty_calls_and_then_after_fifty_more():
    routed = router(model("slow"), model("fast", name="b/m"), strategy="latency_optimized")
    said = []
    for _ in range(104):
        for health, latency_ms in zip(routed.healths, (100.0, 1.0), strict=True):
            health.latency_ms = latency_ms
        said.append((await routed.route(ASK)).content)
    assert [call for call, answer in enumerate(said, 1) if answer == "slow"] == [50, 100]


async def test_a_failure_that_was_passed_over_goes_with_its_call(no_garbage_collector):
    """It holds the frames that it came through, with all that they had received."""
    failures = []

    def failed():
        error = down()
        failures.append(weakref.ref(error))
        return error

    def fail(request):
        raise failed()

    result = await router(model(fail, name="a/m"), model("fine", name="b/m")).route(ASK)
    assert result.content == "fine"
    assert [failure() for failure in failures] == [None]


@pytest.fixture
def no_garbage_collector():
    gc.disable()
    yield
    gc.enable()


async def test_the_reservation_of_a_call_follows_the_answers_of_its_model():
    """Without a limit of the answer: 4,096 tokens before the first answer, then twice the longest of late."""
    request = CompletionRequest((Message("user", "Hi"),))
    long = CompletionResult("x", usage=Usage(10, 1500))
    router = ModelRouter([ScriptedProvider(CompletionResult("x", usage=Usage(10, 5)), long)])
    reserved = [router.bounds(request).answer_tokens]
    for _ in range(2):
        await router.complete(request)
        reserved.append(router.bounds(request).answer_tokens)
    assert reserved == [4096, 1024, 3000]
