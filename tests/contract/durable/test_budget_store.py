"""One suite for every store of budgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.durable.base import (
    BudgetAccount,
    BudgetAmounts,
    BudgetCaps,
    BudgetCharge,
    BudgetHold,
    BudgetRefusal,
    BudgetStore,
    Reservation,
)
from astromesh.durable.budgets import entries_of, exhausted_key, negate
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


async def test_what_is_reserved_is_spent_until_it_is_settled(stores):
    store, other = stores
    assert await store.reserve([Reservation(SESSION, BudgetAmounts(tokens=900), TOKENS)]) is None
    assert await other.reserve([Reservation(SESSION, BudgetAmounts(tokens=900), TOKENS)]) is None
    assert await store.reserve([Reservation(SESSION, BudgetAmounts(tokens=1), TOKENS)]) == BudgetRefusal(
        SESSION, "tokens"
    )
    give_back = [
        BudgetCharge(SESSION, BudgetAmounts(tokens=-850)),
        BudgetCharge(SESSION, BudgetAmounts(tokens=-850)),
    ]
    assert await other.reserve([Reservation(SESSION, BudgetAmounts(tokens=5), TOKENS)], give_back) is None
    assert await store.spent(SESSION) == BudgetAmounts(tokens=105)


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
    assert results.count(None) == 20
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
    assert await store.reserve([held(1, 1000)]) is None
    assert await other.reserve([held(2, 1)]) == BudgetRefusal(SESSION, "tokens", reserved=True)
    assert await store.reserve([held(3, 1)], [BudgetCharge(SESSION, BudgetAmounts(tokens=30), "h-1")]) is None
    assert await other.spent(SESSION) == BudgetAmounts(tokens=31)
    assert await other.reserve([], [BudgetCharge(SESSION, BudgetAmounts(tokens=970), "h-3")]) is None
    assert await other.reserve([held(4, 1)]) == BudgetRefusal(SESSION, "tokens")


async def test_a_run_that_is_taken_up_elsewhere_replaces_what_it_had_reserved(stores):
    """And only that: what it reserves twice in one process counts twice."""
    store, other = stores
    await store.reserve([held(1, 1000, run="r")])
    assert await other.reserve([held(2, 700, run="r", holder="p-2")]) is None
    assert await other.reserve([held(3, 200, run="r", holder="p-2")]) is None
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
    assert await other.reserve([held(3, 600, holder="p-3")]) is None
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
    """Reserves `most`, costs `cost` of it, and settles that; a crash never settles."""

    most: int
    cost: int
    dies: bool


CALLS = st.lists(
    st.integers(1, 50).flatmap(
        lambda most: st.builds(Call, st.just(most), st.integers(0, most), st.booleans())
    ),
    max_size=20,
)


@given(st.integers(1, 200), CALLS, st.data())
@settings(max_examples=200, deadline=None)
def test_for_any_interleaving_no_more_is_spent_than_the_budget_and_one_reservation(budget, calls, data):
    """R8, of the rules that both stores follow: any order of reserving and settling, with crashes."""
    spent, really = BudgetAmounts(), 0
    waiting: list[Any] = list(calls)
    open_: list[Any] = []
    while waiting or open_:
        begin = waiting and (not open_ or data.draw(st.booleans()))
        if begin:
            call = waiting.pop()
            want = Reservation(SESSION, BudgetAmounts(tokens=call.most), BudgetCaps(tokens=budget))
            [entry] = entries_of([want], [])
            assert entry.want == want
            if not exhausted_key(spent, want):
                spent = BudgetAmounts(*(a + b for a, b in zip(spent, want.amounts, strict=True)))
                really += call.cost
                open_.append(call)
        else:
            call = open_.pop(data.draw(st.integers(0, len(open_) - 1)))
            if not call.dies:
                back = negate(BudgetAmounts(tokens=call.most - call.cost))
                spent = BudgetAmounts(*(a + b for a, b in zip(spent, back, strict=True)))
        assert really <= spent.tokens
        assert spent.tokens <= budget + max((c.most for c in calls), default=0)
