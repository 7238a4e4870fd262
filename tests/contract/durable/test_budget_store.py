"""One suite for every store of budgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.durable.budgets import (
    BudgetAccount,
    BudgetAmounts,
    BudgetCaps,
    BudgetCharge,
    BudgetHold,
    BudgetRefusal,
    BudgetStore,
    Reservation,
    add_amounts,
    entries_of,
    grant_of,
    negate,
)
from astromesh.plugins import Plugins
from astromesh.testing import ManualClock
from tests.platform.stores import deps_of

NOW = 1_700_000_000.0
SESSION = BudgetAccount("session", "acme", "support", "s-1", "ann", NOW + 100)
DAY = BudgetAccount("day", "acme", "support", "2023-11-14 ann", "ann", NOW + 100)
TOKENS = BudgetCaps(tokens=1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=("sqlite", "postgres"))
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[tuple[BudgetStore, BudgetStore]]:
    """Two of one database, as two processes have it."""
    deps = [deps_of(request, clock, tmp_path) for _ in range(2)]
    opened = [await Plugins().open("budget_stores", request.param, {}, one) for one in deps]
    yield opened[0], opened[1]
    for one in deps:
        await one.resources.close()


def granted(*tokens: float) -> tuple[BudgetAmounts, ...]:
    return tuple(BudgetAmounts(tokens=amount) for amount in tokens)


async def test_what_is_reserved_is_spent_until_it_is_settled(stores):
    """Near the end a reservation gets what is left."""
    store, other = stores
    want = Reservation(SESSION, BudgetAmounts(tokens=900), TOKENS)
    assert await store.reserve([want]) == granted(900)
    assert await other.reserve([want]) == granted(100)
    assert await store.reserve([want]) == BudgetRefusal(SESSION, "tokens")
    give_back = [
        BudgetCharge(SESSION, BudgetAmounts(tokens=-850)),
        BudgetCharge(SESSION, BudgetAmounts(tokens=-50)),
    ]
    assert await other.reserve([want._replace(amounts=BudgetAmounts(tokens=5))], give_back) == granted(5)
    assert await store.spent(SESSION) == BudgetAmounts(tokens=105)


async def test_a_reservation_that_needs_more_than_is_left_gets_nothing(stores):
    """And the refusal says whether reservations of others keep it out."""
    store, other = stores
    assert await store.reserve([held(1, 900)]) == granted(900)
    big = held(2, 500)._replace(least=BudgetAmounts(tokens=101))
    assert await other.reserve([big]) == BudgetRefusal(SESSION, "tokens", reserved=True)
    end = [BudgetCharge(SESSION, BudgetAmounts(tokens=900), "h-1")]
    assert await other.reserve([big], end) == BudgetRefusal(SESSION, "tokens")
    assert await other.reserve([held(3, 500)._replace(least=BudgetAmounts(tokens=100))]) == granted(100)
    assert await store.spent(SESSION) == BudgetAmounts(tokens=1000)


async def test_all_accounts_are_charged_or_none(stores):
    """What is settled on the way is booked in any case."""
    store, _ = stores
    await store.reserve([Reservation(DAY, BudgetAmounts(tokens=1000), TOKENS)])
    for wanted in ([SESSION, DAY], [DAY, SESSION]):
        wants = [Reservation(account, BudgetAmounts(tokens=10), TOKENS) for account in wanted]
        refusal = await store.reserve(wants, [BudgetCharge(SESSION, BudgetAmounts(cost_usd=0.5))])
        assert refusal == BudgetRefusal(DAY, "tokens")
    assert await store.spent(SESSION) == BudgetAmounts(cost_usd=1.0)
    assert await store.spent(DAY) == BudgetAmounts(tokens=1000)


async def test_a_bound_of_calls_is_exact_for_fifty_at_once_in_two_processes(stores):
    wants = [Reservation(SESSION, BudgetAmounts(tool_calls=1), BudgetCaps(tool_calls=20))]
    results = await asyncio.gather(*(stores[n % 2].reserve(wants) for n in range(50)))
    assert sum(not isinstance(result, BudgetRefusal) for result in results) == 20
    assert (await stores[0].spent(SESSION)).tool_calls == 20


async def test_accounts_in_any_order_at_once_do_not_wait_for_each_other_for_ever(stores):
    async def charge(n: int) -> None:
        one, two = (SESSION, DAY) if n % 2 else (DAY, SESSION)
        await stores[n % 2].reserve(
            [Reservation(one, BudgetAmounts(1), BudgetCaps())], [BudgetCharge(two, BudgetAmounts(1))]
        )

    await asyncio.wait_for(asyncio.gather(*(charge(n) for n in range(20))), 30)
    assert (await stores[0].spent(SESSION), await stores[0].spent(DAY)) == (
        BudgetAmounts(20),
        BudgetAmounts(20),
    )


async def test_accounts_expire_and_sessions_are_erased_and_days_are_not(stores, clock):
    """Nobody gets a new day by erasing what is kept of them."""
    store, _ = stores
    for account in (SESSION, DAY, SESSION._replace(name="s-2", owner="bob")):
        await store.reserve([Reservation(account, BudgetAmounts(tokens=1), TOKENS)])
    assert await store.erase_owner("acme", "ann") == 1
    assert [(await store.spent(a)).tokens for a in (SESSION, DAY)] == [0, 1]
    clock.advance(101)
    await store.expire()
    assert await store.spent(DAY) == BudgetAmounts()


def held(n: int, tokens: float, *, run: str = "", holder: str = "p-1") -> Reservation:
    hold = BudgetHold(f"h-{n}", run or f"run-{n}", holder, NOW + 10)
    return Reservation(SESSION, BudgetAmounts(tokens=tokens), TOKENS, hold)


async def test_a_reservation_counts_until_it_is_settled_and_the_refusal_says_so(stores):
    store, other = stores
    assert await store.reserve([held(1, 1000)]) == granted(1000)
    assert await other.reserve([held(2, 1)]) == BudgetRefusal(SESSION, "tokens", reserved=True)
    assert await store.reserve(
        [held(3, 1)], [BudgetCharge(SESSION, BudgetAmounts(tokens=30), "h-1")]
    ) == granted(1)
    assert await other.spent(SESSION) == BudgetAmounts(tokens=31)
    assert await other.reserve([], [BudgetCharge(SESSION, BudgetAmounts(tokens=970), "h-3")]) == ()
    assert await other.reserve([held(4, 1)]) == BudgetRefusal(SESSION, "tokens")


async def test_a_run_that_is_taken_up_elsewhere_replaces_what_it_had_reserved(stores):
    """And only that: what it reserves twice in one process counts twice."""
    store, other = stores
    await store.reserve([held(1, 1000, run="r")])
    assert await other.reserve([held(2, 700, run="r", holder="p-2")]) == granted(700)
    assert await other.reserve([held(3, 200, run="r", holder="p-2")]) == granted(200)
    assert await store.spent(SESSION) == BudgetAmounts(tokens=900)


async def test_what_a_dead_process_had_reserved_comes_back(stores, clock):
    """Who lives renews; who left, or is silent until the time is over, holds nothing."""
    store, other = stores
    await store.reserve([held(1, 600)])
    await store.reserve([held(2, 400, holder="p-2")])
    clock.advance(6)
    await store.renew("p-2", clock.now() + 10)
    clock.advance(6)
    assert await other.spent(SESSION) == BudgetAmounts(tokens=400)
    assert await other.reserve([held(3, 600, holder="p-3")]) == granted(600)
    await other.release_holder("p-3")
    await other.expire()
    assert await other.spent(SESSION) == BudgetAmounts(tokens=400)


async def test_none_of_several_reservations_is_kept_where_one_is_refused(stores):
    store, _ = stores
    await store.reserve([Reservation(DAY, BudgetAmounts(tokens=1000), TOKENS)])
    day = held(2, 5)._replace(account=DAY, hold=BudgetHold("h-2", "run-1", "p-1", NOW + 10))
    for wants in ([held(1, 5), day], [day, held(1, 5)]):
        assert await store.reserve(wants) == BudgetRefusal(DAY, "tokens")
    assert await store.spent(SESSION) == BudgetAmounts()


# -- R8 ------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """Wants `most`, takes `least`, costs a part of what it gets, and settles that; a crash never settles."""

    most: int
    least: int
    part: float
    dies: bool


CALLS = st.lists(
    st.integers(1, 50).flatmap(
        lambda most: st.builds(Call, st.just(most), st.integers(1, most), st.floats(0, 1), st.booleans())
    ),
    max_size=20,
)


@given(st.integers(1, 200), CALLS, st.data())
@settings(max_examples=200, deadline=None)
def test_for_any_interleaving_no_more_is_spent_than_the_budget(budget, calls, data):
    """R8, of the rules that both stores follow: any order of reserving and settling, with crashes."""
    spent, held = BudgetAmounts(), BudgetAmounts()
    really = 0.0
    waiting: list[Any] = list(calls)
    open_: list[Any] = []
    while waiting or open_:
        begin = waiting and (not open_ or data.draw(st.booleans()))
        if begin:
            call = waiting.pop()
            caps, least = BudgetCaps(tokens=budget), BudgetAmounts(tokens=call.least)
            want = Reservation(SESSION, BudgetAmounts(tokens=call.most), caps, least=least)
            [entry] = entries_of([want], [])
            assert entry.want == want
            grant = grant_of(spent, held, want)
            if isinstance(grant, BudgetRefusal):
                assert budget - spent.tokens - held.tokens < call.least
                assert grant.reserved == (budget - spent.tokens >= call.least)
            else:
                assert call.least <= grant.tokens <= call.most
                held = add_amounts(held, grant)
                open_.append((call, grant))
        else:
            call, grant = open_.pop(data.draw(st.integers(0, len(open_) - 1)))
            cost = BudgetAmounts(tokens=int(grant.tokens * call.part))
            really += cost.tokens
            if not call.dies:
                held, spent = add_amounts(held, negate(grant)), add_amounts(spent, cost)
        assert really <= budget
        assert spent.tokens + held.tokens <= budget


async def test_accounts_of_a_tenant_are_listed_with_what_is_spent_and_reserved(stores, clock):
    store, _ = stores
    bob = DAY._replace(name="2023-11-14 bob", owner="bob")
    for account in (SESSION, bob, DAY._replace(tenant="other")):
        await store.reserve((), [BudgetCharge(account, BudgetAmounts(tokens=10))])
    hold = BudgetHold("h", "run_1", "process", NOW + 10)
    await store.reserve([Reservation(SESSION, BudgetAmounts(tokens=5), TOKENS, hold=hold)])
    found = dict(await store.accounts("acme", None, 10))
    assert found == {SESSION: BudgetAmounts(tokens=15), bob: BudgetAmounts(tokens=10)}
    assert await store.accounts("acme", "bob", 10) == ((bob, BudgetAmounts(tokens=10)),)
    assert len(await store.accounts("acme", None, 1)) == 1
    clock.advance(11)  # a process that died has released nothing
    assert dict(await store.accounts("acme", None, 10))[SESSION] == BudgetAmounts(tokens=10)
