"""What both stores of budgets decide alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from astromesh.abc.budgets import KEYS, Account, Amounts, Charge, Refusal, Want


class Entry(NamedTuple):
    """What happens to one account in a transaction."""

    account: Account
    settled: Amounts
    want: Want | None
    #: ids of reservations that end
    ended: tuple[str, ...] = ()


def entries(wants: Sequence[Want], settled: Sequence[Charge]) -> list[Entry]:
    """One entry for each account, in the one order in which all processes lock them."""
    sums: dict[tuple[str, ...], Amounts] = {}
    accounts: dict[tuple[str, ...], Account] = {}
    ended: dict[tuple[str, ...], tuple[str, ...]] = {}
    for account, amounts, hold in settled:
        name = _name(account)
        accounts[name] = account
        sums[name] = added(sums.get(name, Amounts()), amounts)
        ended[name] = (*ended.get(name, ()), *((hold,) if hold else ()))
    wanted = {_name(want.account): want for want in wants}
    accounts |= {name: want.account for name, want in wanted.items()}
    return [
        Entry(accounts[n], sums.get(n, Amounts()), wanted.get(n), ended.get(n, ())) for n in sorted(accounts)
    ]


def refused(spent: Amounts, held: Amounts, want: Want) -> Refusal | None:
    """Why a want is not granted beside what is spent and what is reserved."""
    if key := used_up(spent, want):
        return Refusal(want.account, key)
    if key := used_up(added(spent, held), want):
        return Refusal(want.account, key, reserved=True)
    return None


def used_up(before: Amounts, want: Want) -> str:
    """The first key of which nothing is left, or an empty string."""
    for key, spent, cap in zip(KEYS, before, want.caps, strict=True):
        if cap is not None and spent >= cap:
            return key
    return ""


def added(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(*(a + b for a, b in zip(one, other, strict=True)))


def negative(amounts: Amounts) -> Amounts:
    return Amounts(*(-amount for amount in amounts))


def _name(account: Account) -> tuple[str, ...]:
    return account[:4]
