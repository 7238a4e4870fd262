"""The seam of stored budgets: what sessions and principals have spent, exact over processes and restarts.

What a call will cost at most is reserved before it and settled after it. A reservation is spent from the
moment it is made, so that calls at the same time see each other, and what a dead process had begun counts.
A call is admitted while something is left: all together spend at most the budget and one reservation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

#: what is counted, in the order of `Amounts`
KEYS = ("tokens", "cost_usd", "tool_calls", "wall_seconds")


class Amounts(NamedTuple):
    """Input and output tokens, US dollars, calls, seconds."""

    tokens: float = 0.0
    cost_usd: float = 0.0
    tool_calls: float = 0.0
    wall_seconds: float = 0.0


class Caps(NamedTuple):
    """Most that may be spent; None: no bound."""

    tokens: float | None = None
    cost_usd: float | None = None
    tool_calls: float | None = None
    wall_seconds: float | None = None


class Account(NamedTuple):
    """What is counted together.

    Args:
        kind: a session as long as it is used, or a day of one principal.
        name: the session's id, or `DATE PRINCIPAL`.
        owner: principal whose data this is.
        expires_at: seconds since the epoch; 0 for never.
    """

    kind: Literal["session", "day"]
    tenant: str
    agent: str
    name: str
    owner: str
    expires_at: float = 0.0


class Charge(NamedTuple):
    """Added to an account; what was reserved too much is negative."""

    account: Account
    amounts: Amounts


class Want(NamedTuple):
    """A reservation, granted while nothing that has a cap here is used up."""

    account: Account
    amounts: Amounts
    caps: Caps


class Refusal(NamedTuple):
    """The account and the key that are used up."""

    account: Account
    key: str


class BudgetStore(Protocol):
    """Accounts in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def reserve(self, wants: Sequence[Want], settled: Sequence[Charge] = ()) -> Refusal | None:
        """Charges what is settled, then all wants or none; answers why none."""

    async def spent(self, account: Account) -> Amounts: ...

    async def expire(self) -> None:
        """Deletes accounts whose time is over."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the session accounts of a principal; that of its day stays, so that nobody can erase it."""
