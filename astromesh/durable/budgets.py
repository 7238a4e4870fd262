"""Budgets of sessions, and of principals per day: exact across processes and restarts.

A run reserves amounts before a call and settles what the call has cost after it. The queries are in
`sql/budgets.sql`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Protocol

from astromesh.durable.leases import HEARTBEAT_SECONDS, LEASE_SECONDS, PeriodicJob
from astromesh.errors import AstromeshError, BudgetExhausted
from astromesh.logs import get_logger
from astromesh.storage.queries import SqlStore, Transaction
from astromesh.telemetry.clock import Clock
from astromesh.types import SessionKey

#: the counted amounts, in the order of `BudgetAmounts`
BUDGET_KEYS = ("tokens", "cost_usd", "tool_calls", "wall_seconds")


class BudgetAmounts(NamedTuple):
    """Input and output tokens, US dollars, calls, seconds."""

    tokens: float = 0.0
    cost_usd: float = 0.0
    tool_calls: float = 0.0
    wall_seconds: float = 0.0


class BudgetCaps(NamedTuple):
    """The limits of an account; None: no limit."""

    tokens: float | None = None
    cost_usd: float | None = None
    tool_calls: float | None = None
    wall_seconds: float | None = None


class BudgetAccount(NamedTuple):
    """An account of one agent: a session, or a day of one principal.

    Args:
        name: the id of the session, or `DATE PRINCIPAL`.
        owner: the principal whose data this is.
        expires_at: seconds since the epoch; 0 for never.
    """

    kind: Literal["session", "day"]
    tenant: str
    agent: str
    name: str
    owner: str
    expires_at: float = 0.0


class BudgetHold(NamedTuple):
    """The holder of a reservation.

    Args:
        id: unique.
        run_id: when a run reserves in another process, its older reservations end.
        holder: the process, which renews its reservations.
        expires_at: seconds since the epoch at which the reservation ends unless it is renewed.
    """

    id: str
    run_id: str
    holder: str
    expires_at: float


class BudgetCharge(NamedTuple):
    """An amount that an account has spent.

    Args:
        hold: id of the reservation that ends with the charge.
    """

    account: BudgetAccount
    amounts: BudgetAmounts
    hold: str = ""


class Reservation(NamedTuple):
    """Amounts to reserve. Without `hold` it is a charge.

    Args:
        amounts: what is granted if the limits leave it; else what they leave.
        least: what is granted at least; while less is left, nothing is.
    """

    account: BudgetAccount
    amounts: BudgetAmounts
    caps: BudgetCaps
    hold: BudgetHold | None = None
    least: BudgetAmounts = BudgetAmounts()


class BudgetRefusal(NamedTuple):
    """The account and the key that do not fit; `reserved`: others may release enough of it."""

    account: BudgetAccount
    key: str
    reserved: bool = False


class BudgetStore(Protocol):
    """Accounts in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def reserve(
        self, reservations: Sequence[Reservation], settled: Sequence[BudgetCharge] = ()
    ) -> BudgetRefusal | tuple[BudgetAmounts, ...]:
        """Charges `settled`, then grants all reservations or none.

        Returns:
            the granted amount of each reservation, or why none is granted.
        """

    async def spent(self, account: BudgetAccount) -> BudgetAmounts:
        """Returns the amounts that are spent or reserved."""

    async def accounts(
        self, tenant: str, owner: str | None, limit: int
    ) -> tuple[tuple[BudgetAccount, BudgetAmounts], ...]:
        """Returns the newest accounts, with the amounts that are spent or reserved. `owner` None: of all."""

    async def renew(self, holder: str, expires_at: float) -> None:
        """Renews the reservations of a process."""

    async def release_holder(self, holder: str) -> None:
        """Ends the reservations of a process."""

    async def expire(self) -> None:
        """Deletes expired accounts and reservations."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the session accounts of a principal. Its day accounts stay, so that no limit is reset."""


class Entry(NamedTuple):
    """The changes of one account in a transaction.

    Args:
        settled: added to what is spent.
        want: the reservation to grant.
        ended: ids of the reservations that end.
    """

    account: BudgetAccount
    settled: BudgetAmounts
    want: Reservation | None
    ended: tuple[str, ...] = ()


def entries_of(reservations: Sequence[Reservation], settled: Sequence[BudgetCharge]) -> list[Entry]:
    """Returns one entry for each account, in the order in which all processes lock them."""
    sums: dict[tuple[str, ...], BudgetAmounts] = {}
    accounts: dict[tuple[str, ...], BudgetAccount] = {}
    ended: dict[tuple[str, ...], tuple[str, ...]] = {}
    for account, amounts, hold in settled:
        name = _account_key(account)
        accounts[name] = account
        sums[name] = add_amounts(sums.get(name, BudgetAmounts()), amounts)
        ended[name] = (*ended.get(name, ()), *((hold,) if hold else ()))
    by_account = {_account_key(want.account): want for want in reservations}
    accounts |= {name: want.account for name, want in by_account.items()}
    return [
        Entry(accounts[n], sums.get(n, BudgetAmounts()), by_account.get(n), ended.get(n, ()))
        for n in sorted(accounts)
    ]


def grant_of(spent: BudgetAmounts, held: BudgetAmounts, want: Reservation) -> BudgetRefusal | BudgetAmounts:
    """Returns the amounts that a reservation gets, or why it gets nothing."""
    if key := _unfit_key(spent, want):
        return BudgetRefusal(want.account, key)
    before = add_amounts(spent, held)
    if key := _unfit_key(before, want):
        return BudgetRefusal(want.account, key, reserved=True)
    return BudgetAmounts(
        *(
            amount if cap is None else min(amount, cap - used)
            for amount, cap, used in zip(want.amounts, want.caps, before, strict=True)
        )
    )


def _unfit_key(before: BudgetAmounts, want: Reservation) -> str:
    """Returns the first key of which less is left than is wanted at least, or an empty string."""
    for key, used, cap, least in zip(BUDGET_KEYS, before, want.caps, want.least, strict=True):
        if cap is not None and (used >= cap or cap - used < least):
            return key
    return ""


def add_amounts(one: BudgetAmounts, other: BudgetAmounts) -> BudgetAmounts:
    return BudgetAmounts(*(a + b for a, b in zip(one, other, strict=True)))


def negate(amounts: BudgetAmounts) -> BudgetAmounts:
    return BudgetAmounts(*(-amount for amount in amounts))


def _account_key(account: BudgetAccount) -> tuple[str, ...]:
    return account[:4]


# -- the process ---------------------------------------------------------------------------------------------


class BudgetLimit(NamedTuple):
    """The limits of one kind of account."""

    kind: Literal["session", "day"]
    caps: BudgetCaps


#: seconds after which settled charges are written, between two attempts, and between two deletions of expired
#: accounts
_SETTLE_SECONDS, _AGAIN_SECONDS, _EXPIRY_SECONDS = 0.05, 1.0, 3600.0
#: seconds for which the account of a session is stored after its last use, and of a day after its end
_SESSION_SECONDS, _DAY_SECONDS = 30 * 86_400.0, 86_400.0
#: seconds between two attempts of a durable run while others have reserved the rest, and in the `Retry-After`
#: of a plain run
RETRY_SECONDS, RETRY_AFTER_SECONDS = 0.25, 5.0
log = get_logger("astromesh.budgets")


class ReservedByOthers(BudgetExhausted):
    """Nothing is left now. When the calls of others end, they may release some of it."""


class Budgets:
    """The accounts that this process uses.

    Args:
        store: opens the store, or returns the open one.
    """

    def __init__(self, store: Callable[[], Awaitable[BudgetStore]], clock: Clock) -> None:
        self._open, self.clock = store, clock
        self._opening = asyncio.Lock()
        self._store: BudgetStore | None = None
        self._settled: list[BudgetCharge] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Future[BudgetRefusal | tuple[BudgetAmounts, ...]]] = set()
        self._expired_at = float("-inf")
        #: the unique name of this process, and the ids of its reservations
        self._holder, self._hold_ids = f"b_{secrets.token_hex(8)}", set[str]()
        self._renewal = PeriodicJob(
            self._renew, HEARTBEAT_SECONDS, self._renewal_failed, needed=lambda: bool(self._hold_ids)
        )

    def hold(self, run_id: str) -> BudgetHold:
        """Returns a new reservation for a run of this process."""
        return BudgetHold(secrets.token_hex(12), run_id, self._holder, self.clock.now() + LEASE_SECONDS)

    async def reserve(self, reservations: Sequence[Reservation]) -> tuple[BudgetAmounts, ...]:
        """Returns the granted amount of each reservation.

        Raises:
            BudgetExhausted: one of the accounts has not enough left.
        """
        store = await self._opened()
        await self._expire(store)
        settled, self._settled = self._settled, []
        request = asyncio.ensure_future(self._reserve(store, reservations, settled))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        try:
            granted = await asyncio.shield(request)
        except asyncio.CancelledError:  # the store still completes the request
            request.add_done_callback(partial(self._release, reservations))
            raise
        if isinstance(granted, BudgetRefusal):
            raise self.exhausted(granted)
        if hold_ids := {want.hold.id for want in reservations if want.hold}:
            self._hold_ids |= hold_ids
            self._renewal.start()
        return granted

    async def _reserve(
        self, store: BudgetStore, reservations: Sequence[Reservation], settled: list[BudgetCharge]
    ) -> BudgetRefusal | tuple[BudgetAmounts, ...]:
        try:
            return await store.reserve(reservations, settled)
        except BaseException:  # it is unknown whether the store granted it
            self._settled = settled + _release_charges(reservations) + self._settled
            self._begin_in(_AGAIN_SECONDS)
            raise

    def _release(
        self,
        reservations: Sequence[Reservation],
        request: asyncio.Future[BudgetRefusal | tuple[BudgetAmounts, ...]],
    ) -> None:
        """Releases what was granted to a cancelled caller."""
        if request.cancelled() or request.exception() is not None:
            return
        if not isinstance(request.result(), BudgetRefusal):
            self.settle(_release_charges(reservations))

    async def accounts(
        self, tenant: str, owner: str | None, limit: int
    ) -> tuple[tuple[BudgetAccount, BudgetAmounts], ...]:
        """See `BudgetStore.accounts`."""
        await self.flush()
        return await (await self._opened()).accounts(tenant, owner, limit)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await (await self._opened()).erase_owner(tenant, owner)

    def settle(self, charges: Sequence[BudgetCharge]) -> None:
        """Charges what calls have cost, and ends their reservations."""
        self._settled += charges
        self._hold_ids -= {charge.hold for charge in charges}
        self._begin_in(_SETTLE_SECONDS)

    async def flush(self) -> None:
        """Returns when every settled charge is in the store, or the store does not answer."""
        while active := {*self._requests, *([self._writing] if self._writing else ())}:
            await asyncio.wait(active)
        self._stop_timer()
        await self._write()

    async def close(self) -> None:
        """Writes every settled charge, and ends the reservations of this process."""
        await self._renewal.close()
        await self.flush()
        self._stop_timer()
        if self._store is None:
            return
        try:
            await self._store.release_holder(self._holder)
        except AstromeshError as error:  # then they expire
            log.warning("budgets_not_left", error=str(error))

    async def _opened(self) -> BudgetStore:
        async with self._opening:
            if self._store is None:
                self._store = await self._open()
            return self._store

    def _begin_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write_soon())

    async def _write_soon(self) -> None:
        try:
            await self._write()
        finally:
            self._writing = None

    async def _write(self) -> None:
        if not self._settled:
            return
        try:
            await self.reserve(())
        except AstromeshError as error:  # it counts as reserved until the reservation expires
            log.warning("budgets_not_settled", count=len(self._settled), error=str(error))
            self._begin_in(_AGAIN_SECONDS)

    async def _renew(self) -> None:
        await (await self._opened()).renew(self._holder, self.clock.now() + LEASE_SECONDS)

    def _renewal_failed(self, error: Exception) -> None:
        """Logs the failure. The next renewal may succeed before the reservations expire."""
        log.warning("budgets_not_renewed", count=len(self._hold_ids), error=str(error))

    async def _expire(self, store: BudgetStore) -> None:
        if self.clock.monotonic() - self._expired_at > _EXPIRY_SECONDS:
            self._expired_at = self.clock.monotonic()
            await store.expire()

    def exhausted(self, refusal: BudgetRefusal) -> BudgetExhausted:
        """Returns the error of a refused reservation."""
        account, key, reserved = refusal
        session = account.kind == "session"
        budget = "per_session" if session else "per_principal_daily"
        name, where = f"{budget}.{key}", f"spec.budgets.{budget} of {account.agent!r}"
        if reserved:
            span = "this session's" if session else "today's"
            return ReservedByOthers(
                f"Active runs have reserved the rest of {span} budget of {key}; send this again in a moment "
                f"({where}).",
                retry_after=RETRY_AFTER_SECONDS,
                budget=name,
            )
        if session:
            return BudgetExhausted(
                f"The budget of {key} for this session is used up, or has too little left for another call; "
                f"start another session ({where}).",
                budget=name,
            )
        left = _DAY_SECONDS - self.clock.now() % _DAY_SECONDS
        return BudgetExhausted(
            f"Today's budget of {key} is used up, or has too little left for another call; a new one begins "
            f"at midnight UTC ({where}).",
            retry_after=left,
            budget=name,
        )


def _release_charges(reservations: Sequence[Reservation]) -> list[BudgetCharge]:
    """Returns the charges that end reservations of which nothing was spent."""
    return [BudgetCharge(want.account, BudgetAmounts(), want.hold.id) for want in reservations if want.hold]


def account_of(limit: BudgetLimit, key: SessionKey, owner: str, now: float) -> BudgetAccount:
    if limit.kind == "session":
        return BudgetAccount("session", key.tenant, key.agent, key.session_id, owner, now + _SESSION_SECONDS)
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    ends = now - now % _DAY_SECONDS + _DAY_SECONDS
    return BudgetAccount("day", key.tenant, key.agent, f"{today} {owner}", owner, ends + _DAY_SECONDS)


class SqlBudgets(SqlStore):
    """A BudgetStore over one database, which it may share with others."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "budgets"

    async def reserve(
        self, reservations: Sequence[Reservation], settled: Sequence[BudgetCharge] = ()
    ) -> BudgetRefusal | tuple[BudgetAmounts, ...]:
        entries = entries_of(reservations, settled)
        granted = await self._queries.transact(partial(_reserve, entries, self._clock.now()))
        if isinstance(granted, BudgetRefusal):
            return granted
        return tuple(granted[want.account[:4]] for want in reservations)

    async def spent(self, account: BudgetAccount) -> BudgetAmounts:
        rows = await self._queries.read("spent", *account[:4])
        reserved = await self._queries.read("reserved", *account[:4], self._clock.now())
        spent = BudgetAmounts(*rows[0]) if rows else BudgetAmounts()
        return add_amounts(spent, BudgetAmounts(*reserved[0]))

    async def accounts(
        self, tenant: str, owner: str | None, limit: int
    ) -> tuple[tuple[BudgetAccount, BudgetAmounts], ...]:
        rows = await self._queries.read("accounts", tenant, owner, self._clock.now(), limit)
        columns = map(tuple, rows)
        return tuple((BudgetAccount(*row[:6]), BudgetAmounts(*row[6:])) for row in columns)

    async def renew(self, holder: str, expires_at: float) -> None:
        await self._queries.write("renew", holder, expires_at)

    async def release_holder(self, holder: str) -> None:
        await self._queries.write("release_holder", holder)

    async def expire(self) -> None:
        for query in ("expire", "expire_holds"):
            await self._queries.write(query, self._clock.now())

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return len(await self._queries.write("erase_owner", tenant, owner))


async def _reserve(
    entries: Sequence[Entry], now: float, tx: Transaction
) -> BudgetRefusal | dict[tuple[str, ...], BudgetAmounts]:
    """Returns the granted amounts by account, or why none is granted."""
    refusal: BudgetRefusal | None = None
    granted: dict[tuple[str, ...], BudgetAmounts] = {}
    reservations: list[Reservation] = []
    for account, settled, want, ended in entries:
        for hold in ended:
            await tx.execute("release", hold)
        spent = await _add(account, settled, tx)
        if want is None or refusal is not None:
            continue
        grant = grant_of(spent, await _reserved(want, now, tx), want)
        if isinstance(grant, BudgetRefusal):
            refusal = grant
            continue
        reservations.append(want._replace(amounts=grant))
        await _grant(reservations[-1], tx)
        granted[want.account[:4]] = grant
    if refusal is None:
        return granted
    for want in reservations:
        await _take_back(want, tx)
    return refusal


async def _reserved(want: Reservation, now: float, tx: Transaction) -> BudgetAmounts:
    """Returns what is reserved, without what this run has reserved in an earlier process."""
    if want.hold is not None:
        hold = want.hold
        await tx.execute("delete_stale_holds", *want.account[:4], now, hold.run_id, hold.holder)
    return BudgetAmounts(*(await tx.fetch("reserved", *want.account[:4], now))[0])


async def _grant(want: Reservation, tx: Transaction) -> None:
    if want.hold is None:
        await _add(want.account, want.amounts, tx)
    else:
        await tx.execute("reserve", *want.account[:4], *want.hold, *want.amounts)


async def _take_back(want: Reservation, tx: Transaction) -> None:
    if want.hold is None:
        await _add(want.account, negate(want.amounts), tx)
    else:
        await tx.execute("release", want.hold.id)


async def _add(account: BudgetAccount, amounts: BudgetAmounts, tx: Transaction) -> BudgetAmounts:
    return BudgetAmounts(*(await tx.fetch("add", *account, *amounts))[0])
