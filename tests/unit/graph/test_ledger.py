"""The ledger of a run: what was spent, what may still be, over a tree of runs."""

from __future__ import annotations

import asyncio
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.errors import BudgetExhausted
from astromesh.graph.ledger import (
    MODEL_KEYS,
    CallBounds,
    Claim,
    OpenCall,
    RunLedger,
    bounds_of,
    bounds_of_providers,
    limited,
)
from astromesh.providers.base import Capabilities
from astromesh.testing import ScriptedProvider
from astromesh.tokens import FIRST_ANSWER_TOKENS, estimate_request
from astromesh.types import CompletionRequest, Message, Usage


def test_what_nobody_capped_is_counted_and_never_used_up() -> None:
    ledger = RunLedger()
    assert ledger.remaining("tokens") == inf
    ledger.spend("steps")
    ledger.spend("steps", 2.5)
    assert ledger.used == {"steps": 3.5}
    assert ledger.spent_in_tree("steps") == 3.5
    assert ledger.spent_in_tree("tokens") == 0
    assert ledger.exhausted() == ""


@pytest.mark.parametrize("caps", [{}, {"model_calls": 2.0}])
def test_model_calls_are_counted_with_and_without_a_cap(caps: dict[str, float]) -> None:
    ledger = RunLedger(caps)
    for count in (1, 2):
        ledger.reserve_model_call()
        assert ledger.used == {"model_calls": count}


def test_the_callers_caps_are_copied() -> None:
    """Who changes the caps that a ledger was made of changes no run."""
    caps = {"tokens": 10.0}
    ledger = RunLedger(caps)
    caps["tokens"] = 0.0
    assert ledger.remaining("tokens") == 10


def test_what_does_not_fit_is_not_spent_at_all() -> None:
    ledger = RunLedger({"tool_calls": 2})
    assert ledger.try_spend("tool_calls")
    assert not ledger.try_spend("tool_calls", 2)
    assert ledger.remaining("tool_calls") == 1
    assert ledger.try_spend("tool_calls")  # exactly what is left
    assert not ledger.try_spend("tool_calls")
    assert ledger.used == {"tool_calls": 2}
    assert ledger.exhausted() == "tool_calls"


def test_a_child_is_held_by_its_own_cap_and_by_every_one_above() -> None:
    root = RunLedger({"tokens": 10})
    middle = root.child()
    leaf = middle.child({"tokens": 4})
    assert leaf.remaining("tokens") == 4
    root.spend("tokens", 8)
    assert (leaf.remaining("tokens"), middle.remaining("tokens")) == (2, 2)
    assert not leaf.try_spend("tokens", 3)
    assert leaf.try_spend("tokens", 2)
    assert [one.used["tokens"] for one in (leaf, middle, root)] == [2, 2, 10]
    assert leaf.spent_in_tree("tokens") == 10


def test_what_has_happened_is_booked_beyond_the_cap() -> None:
    root = RunLedger({"tokens": 1})
    root.child().spend("tokens", 5)
    assert root.remaining("tokens") == -4
    assert root.exhausted() == "tokens"


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_usage_of_every_call_adds_up_here_and_above(depth: int) -> None:
    """The first call takes the short way of a run that stands alone; it must count the same."""
    tree = [RunLedger()]
    for _ in range(depth):
        tree.append(tree[-1].child())
    tree[-1].add_usage(Usage(10, 2, 1, 0.5))
    tree[-1].add_usage(Usage(20, 3, 0, 0.25))
    for ledger in tree:
        assert ledger.usage == Usage(30, 5, 1, 0.75)
        assert ledger.used == {"tokens": 35, "cost_usd": 0.75}


def test_usage_adds_to_what_was_spent_by_name_before() -> None:
    ledger = RunLedger()
    ledger.spend("tokens", 5)
    ledger.add_usage(Usage(10, 2, 0, 0.5))
    assert ledger.used == {"tokens": 17, "cost_usd": 0.5}
    assert ledger.usage == Usage(10, 2, 0, 0.5)


def test_siblings_do_not_see_each_others_usage() -> None:
    root = RunLedger()
    one, other = root.child(), root.child()
    one.add_usage(Usage(1, 1))
    other.add_usage(Usage(2, 2))
    assert (one.usage, other.usage, root.usage) == (Usage(1, 1), Usage(2, 2), Usage(3, 3))


@pytest.mark.parametrize("key", [*MODEL_KEYS, "tool_calls"])
def test_each_budget_of_calls_is_asked_for(key: str) -> None:
    """Used up exactly at its cap, a little before not; also where only a parent has the cap."""
    root = RunLedger({key: 2})
    child = root.child()
    child.spend(key, 1.5)
    assert (root.exhausted(), child.exhausted()) == ("", "")
    child.spend(key, 0.5)
    assert (root.exhausted(), child.exhausted()) == (key, key)


def test_only_the_keys_that_are_asked_for_count_and_the_first_is_named() -> None:
    ledger = RunLedger({"tool_calls": 0, "cost_usd": 0, "steps": 0})
    assert ledger.exhausted() == "cost_usd"
    assert ledger.exhausted(("tool_calls",)) == "tool_calls"
    assert ledger.exhausted(("tokens",)) == ""
    assert RunLedger({"tokens": 1}).exhausted() == ""  # nothing spent yet
    assert ledger.child({"tool_calls": 5}).exhausted(MODEL_KEYS) == "cost_usd"


# -- reservations of model calls -------------------------------------------------------------------------

ASK = CallBounds(10, 100)


async def test_a_call_reserves_its_prompt_and_its_answer_in_the_whole_tree() -> None:
    root = RunLedger({"tokens": 200})
    leaf = root.child().child()
    claim = await leaf.claim(ASK)
    assert claim.answer_tokens == 100
    assert (await leaf.claim(ASK)).answer_tokens == 80  # what the first has left
    leaf.add_usage(Usage(10, 5))
    claim.release()
    assert (await root.child().claim(ASK)).answer_tokens == 200 - 15 - 90 - 10
    assert root.used["model_calls"] == 3


async def test_a_call_waits_while_only_calls_under_way_leave_it_no_room() -> None:
    root = RunLedger({"tokens": 120})
    first = await root.child().claim(ASK)
    waiting = [asyncio.create_task(root.child().claim(ASK)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    root.add_usage(Usage(10, 5))
    first.release()
    assert (await waiting[1]).answer_tokens == 95
    assert waiting[0].cancelled()


@pytest.mark.parametrize("left", [25, 26])
async def test_a_call_whose_answer_has_less_than_sixteen_tokens_is_not_made(left: int) -> None:
    ledger = RunLedger({"tokens": left})
    if left == 26:
        assert (await ledger.claim(ASK)).answer_tokens == 16
        return
    with pytest.raises(BudgetExhausted, match="budget of tokens has too little left"):
        await ledger.claim(ASK)
    assert (ledger.refused, ledger.used) == ("tokens", {})


async def test_an_answer_that_is_short_by_itself_needs_no_more() -> None:
    assert (await RunLedger({"tokens": 15}).claim(CallBounds(10, 5))).answer_tokens == 5


@pytest.mark.parametrize(("usd", "answer"), [(0.5, 40), (10.0, 100)])
async def test_dollars_limit_an_answer_by_its_price(usd: float, answer: int) -> None:
    bounds = CallBounds(10, 100, prompt_usd=0.1, token_usd=0.01)
    assert (await RunLedger({"cost_usd": usd}).claim(bounds)).answer_tokens == answer


async def test_a_call_without_a_price_costs_no_dollars() -> None:
    assert (await RunLedger({"cost_usd": 0.001}).claim(ASK)).answer_tokens == 100


async def test_the_ledgers_that_a_refusal_concerns_end_at_the_one_with_the_cap() -> None:
    root = RunLedger()
    middle = root.child({"tokens": 5})
    leaf = middle.child()
    with pytest.raises(BudgetExhausted):
        await leaf.claim(ASK)
    assert [ledger.refused for ledger in (root, middle, leaf)] == ["", "tokens", "tokens"]


@given(
    st.integers(1, 400), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 200)), max_size=12), st.data()
)
@settings(max_examples=200, deadline=None)
def test_for_any_order_of_calls_no_more_is_spent_than_the_cap(cap, calls, data) -> None:
    """R8. Each call costs its prompt and a part of the answer that it may have."""

    async def play() -> None:
        root = RunLedger({"tokens": cap})
        ledgers = [root, root.child(), root.child().child()]
        waiting = [
            asyncio.create_task(ledgers[n % 3].claim(CallBounds(*call))) for n, call in enumerate(calls)
        ]
        claims: list[Claim] = []
        while waiting or claims:
            await asyncio.sleep(0)
            for task in [task for task in waiting if task.done()]:
                waiting.remove(task)
                if task.exception() is None:
                    claims.append(task.result())
            if claims:
                claim = claims.pop(data.draw(st.integers(0, len(claims) - 1)))
                prompt = int(claim.amounts["tokens"]) - claim.answer_tokens
                claim.ledger.add_usage(Usage(prompt, data.draw(st.integers(0, claim.answer_tokens))))
                claim.release()
            assert root.usage.total_tokens <= cap
        assert not any(root.held.values())

    asyncio.run(play())


async def test_another_try_of_a_call_is_reserved_anew_and_counts_no_second_call() -> None:
    """The failed try is charged before; without room for the next one nothing stays reserved."""
    ledger = RunLedger({"tokens": 100})
    call = OpenCall(ledger, await ledger.claim(CallBounds(10, 40)))
    assert await call.renew(Usage(10, 40), CallBounds(10, 40)) == 40
    assert (ledger.used["model_calls"], ledger.used["tokens"], ledger.held["tokens"]) == (1, 50, 50)
    with pytest.raises(BudgetExhausted):
        await call.renew(Usage(10, 40), CallBounds(10, 40))
    assert (ledger.used["tokens"], ledger.held["tokens"], call.charged) == (100, 0, Usage(20, 80))


async def test_a_call_that_has_ended_holds_nothing_and_ends_once() -> None:
    ledger = RunLedger({"tokens": 100})
    call = OpenCall(ledger, await ledger.claim(ASK))
    call.release()
    assert (call.claim, ledger.held) == (None, {"tokens": 0, "cost_usd": 0})
    call.release()
    assert ledger.held["tokens"] == 0


@pytest.mark.parametrize(
    ("bounds", "cap", "fits"),
    [
        (CallBounds(10, 100, prompt_usd=0.5), 0.5, True),  # its answer is free
        (CallBounds(10, 100, prompt_usd=0.5), 0.25, False),
        (CallBounds(10, 100, prompt_usd=0.25, token_usd=0.015625), 0.5, True),  # sixteen tokens
        (CallBounds(10, 100, prompt_usd=0.25, token_usd=0.03125), 0.5, False),
        (CallBounds(10, 0, prompt_usd=0.5), 0.25, False),
    ],
)
async def test_a_call_whose_price_does_not_fit_is_not_made(
    bounds: CallBounds, cap: float, fits: bool
) -> None:
    ledger = RunLedger({"cost_usd": cap})
    if fits:
        await ledger.claim(bounds)
        return
    with pytest.raises(
        BudgetExhausted, match=r"The run's budget of cost_usd has too little left for another"
    ):
        await ledger.claim(bounds)
    assert ledger.held == {}


async def test_a_reservation_has_the_price_of_the_prompt_and_of_the_answer() -> None:
    claim = await RunLedger({"cost_usd": 1.5}).claim(CallBounds(10, 40, prompt_usd=0.5, token_usd=0.03125))
    assert (claim.answer_tokens, claim.amounts) == (32, {"tokens": 42.0, "cost_usd": 1.5})


@pytest.mark.parametrize("key", ["tokens", "cost_usd", "model_calls"])
async def test_a_call_after_the_budget_is_used_up_says_so(key: str) -> None:
    ledger = RunLedger({key: 1})
    ledger.spend(key)
    with pytest.raises(BudgetExhausted) as raised:
        await ledger.claim(ASK)
    assert str(raised.value) == f"The run's budget of {key} is used up."
    assert (ledger.refused, ledger.used.get("model_calls", 0)) == (key, int(key == "model_calls"))


@pytest.mark.parametrize(
    ("ledger", "limits"),
    [
        (RunLedger(), False),
        (RunLedger({"steps": 1, "model_calls": 1}), False),
        (RunLedger({"tokens": 1}), True),
        (RunLedger({"cost_usd": 1}), True),
        (RunLedger({"cost_usd": 1}).child({"steps": 1}), True),
        (RunLedger({"steps": 1}).child().child(), False),
    ],
)
def test_only_tokens_and_dollars_limit_an_answer(ledger: RunLedger, limits: bool) -> None:
    assert ledger.limits_calls is limits


def test_what_one_ledger_has_spent_is_charged_to_another_from_its_json() -> None:
    spent = RunLedger()
    spent.add_usage(Usage(10, 2, 1, 0.5))
    spent.spend("model_calls")
    spent.spend("steps", 3)
    root = RunLedger()
    ledger = root.child()
    ledger.spend("steps")
    ledger.add(spent.to_json())
    assert ledger.usage == root.usage == Usage(10, 2, 1, 0.5)
    assert ledger.used == {"tokens": 12, "cost_usd": 0.5, "model_calls": 1, "steps": 4}
    assert root.used == ledger.used
    assert RunLedger().to_json() == {"usage": RunLedger().to_json()["usage"], "used": {}}


# -- what a call costs at most ----------------------------------------------------------------------------

QUESTION = CompletionRequest((Message("user", "How tall is the tower of Pisa?"),))


def asking(**parameters: object) -> CompletionRequest:
    return CompletionRequest(QUESTION.messages, parameters=parameters)


class Priced(ScriptedProvider):
    """Takes a price for the prompt and one for each token of the answer."""

    def __init__(self, prompt: float, token: float, answer_tokens: int = 0) -> None:
        super().__init__("", capabilities=Capabilities(answer_tokens=answer_tokens))
        self._prompt, self._token = prompt, token

    def estimated_cost(self, request: CompletionRequest) -> float:
        return self._prompt + self._token * request.parameters["max_tokens"]


@pytest.mark.parametrize(
    ("request_", "configured", "tokens"),
    [
        (asking(max_tokens=50, temperature=0.5), 10, 50),
        (asking(max_tokens=1), 10, 1),
        (asking(max_tokens=0), 10, 10),
        (asking(max_tokens="50"), 10, 10),
        (asking(), 10, 10),
        (asking(), 0, FIRST_ANSWER_TOKENS),
    ],
)
def test_an_answer_is_limited_by_the_request_else_by_the_configuration(
    request_: CompletionRequest, configured: int, tokens: int
) -> None:
    bounds = bounds_of(Priced(0.5, 0.25, configured), request_)
    assert bounds == CallBounds(estimate_request(QUESTION), tokens, 0.5, 0.25)


def test_a_call_that_any_of_several_models_may_answer_has_the_highest_bounds() -> None:
    dear, chatty = Priced(2.0, 0.25, 10), Priced(0.5, 0.5, 20)
    bounds = bounds_of_providers((one for one in (dear, chatty)), QUESTION, 1.5)
    assert bounds == CallBounds(estimate_request(QUESTION) * 1.5, 20, 3.0, 0.5)
    assert bounds_of_providers([Priced(0.5, 0.25), chatty], QUESTION, usual=70).answer_tokens == 70
    assert bounds_of_providers([], QUESTION, usual=70).answer_tokens == 70


def test_a_model_that_states_its_bounds_is_asked_and_one_without_a_price_has_none() -> None:
    class Router:
        def bounds(self, request: CompletionRequest) -> CallBounds:
            return CallBounds(len(request.messages), 7)

    assert bounds_of(Router(), QUESTION) == (1, 7, 0.0, 0.0)
    assert bounds_of(object(), asking(max_tokens=5)) == (estimate_request(QUESTION), 5, 0.0, 0.0)


def test_a_limited_request_keeps_its_other_parameters() -> None:
    request = limited(asking(max_tokens=50, temperature=0.5), 20)
    assert request == asking(max_tokens=20, temperature=0.5)
