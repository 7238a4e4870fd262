"""The seam of stored budgets: what sessions and principals have spent, exact over processes and restarts.

What a call will cost at most is reserved before it and settled after it. A reservation counts from the moment
it is made, so that calls at the same time see each other, and ends when it is settled, when its run is taken
up again elsewhere, or when its process is not heard of any more. A call is admitted while something is left:
all together spend at most the budget and one reservation.
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


class Hold(NamedTuple):
    """Whose a reservation is.

    Args:
        id: names it alone.
        run_id: a run that reserves in another process has left its older reservations behind.
        holder: process that lives for as long as it renews.
        expires_at: seconds since the epoch at which it ends where nobody has renewed it.
    """

    id: str
    run_id: str
    holder: str
    expires_at: float


class Charge(NamedTuple):
    """Added to what an account has spent.

    Args:
        hold: id of the reservation that ends with it.
    """

    account: Account
    amounts: Amounts
    hold: str = ""


class Want(NamedTuple):
    """Granted while nothing that has a cap here is used up: a reservation, or without `hold` a charge."""

    account: Account
    amounts: Amounts
    caps: Caps
    hold: Hold | None = None


class Refusal(NamedTuple):
    """The account and the key of which nothing is left; `reserved`: others may give some of it back."""

    account: Account
    key: str
    reserved: bool = False


class BudgetStore(Protocol):
    """Accounts in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def reserve(self, wants: Sequence[Want], settled: Sequence[Charge] = ()) -> Refusal | None:
        """Charges what is settled, then all wants or none; answers why none."""

    async def spent(self, account: Account) -> Amounts:
        """With what is reserved."""

    async def renew(self, holder: str, expires_at: float) -> None:
        """This process lives, and so do its reservations."""

    async def leave(self, holder: str) -> None:
        """Ends the reservations of a process that is gone."""

    async def expire(self) -> None:
        """Deletes accounts and reservations whose time is over."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the session accounts of a principal; that of its day stays, so that nobody can erase it."""
