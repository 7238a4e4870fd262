"""What both stores of budgets decide alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from astromesh.abc.budgets import KEYS, Account, Amounts, Charge, Want


class Entry(NamedTuple):
    """What happens to one account in a transaction."""

    account: Account
    settled: Amounts
    want: Want | None


def entries(wants: Sequence[Want], settled: Sequence[Charge]) -> list[Entry]:
    """One entry for each account, in the one order in which all processes lock them."""
    sums: dict[tuple[str, ...], Amounts] = {}
    accounts: dict[tuple[str, ...], Account] = {}
    for account, amounts in settled:
        accounts[_name(account)] = account
        sums[_name(account)] = added(sums.get(_name(account), Amounts()), amounts)
    wanted = {_name(want.account): want for want in wants}
    accounts |= {name: want.account for name, want in wanted.items()}
    return [Entry(accounts[n], sums.get(n, Amounts()), wanted.get(n)) for n in sorted(accounts)]


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
