"""Budgets of sessions and of principals by the day (`spec.budgets`), exact over processes and restarts.

Before a model call the most that it may cost is reserved in the store: its prompt and `max_tokens`, or 1,024
tokens where the agent names none; before a run its `timeout_seconds`. Behind it the reservation ends and what
it has really cost is charged; a tool call is charged as one. A nested run is charged to the accounts of all
above it. What is settled goes to the store with the next reservation, at the latest a moment later: until
then others see the reservation, which is more.

A call is made while something is left beside what is spent and reserved. Where only reservations of others
stand in its way, an accepted run waits for them; a plain one is refused and told to come back in a moment.

Reservations end with their process: it renews them while it lives, and a run that is taken up again replaces
those that it had left behind. What a call has cost that was under way when its process died nobody knows, and
it is not counted.

Agents without such budgets have none of these objects.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial

import structlog

from astromesh.abc.budgets import Account, Amounts, BudgetStore, Caps, Charge, Hold, Refusal, Want
from astromesh.abc.clock import Clock
from astromesh.abc.tool import ToolContext, ToolPort
from astromesh.core.model_router import ModelRouter
from astromesh.errors import AstromeshError, BudgetExhausted
from astromesh.node.scope import Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.budget_limits import Limit
from astromesh.runtime.run import RunModel
from astromesh.runtime.writer import ended
from astromesh.tokens import estimate_request, of_bytes, size_of
from astromesh.types import (
    BrokeOff,
    CompletionRequest,
    CompletionResult,
    Delta,
    SessionKey,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    charged,
)

#: tokens of an answer that are reserved where the request does not bound it
USUAL_ANSWER = 1024
#: seconds after which what is settled is written, and between two looks for accounts whose time is over
_DELAY, _EXPIRY = 0.05, 3600.0
#: seconds for which the account of a session is kept behind its last use, and of a day behind its end
_SESSION, _DAY = 30 * 86_400.0, 86_400.0
#: seconds for which a reservation stands that nobody renews; tests of crashes shorten it, as all leases
_LEASE = float(os.environ.get("ASTROMESH_LEASE_SECONDS", "10"))
#: seconds between two tries of an accepted run while others have reserved the rest, and those that a plain
#: one is told to wait
_PAUSE, _SOON = 0.25, 5.0
_NO_MORE_CALLS = "{} Answer with what you have."

#: with whose session and principal they count
Limits = tuple[tuple[Limit, SessionKey, str], ...]

log = structlog.get_logger("astromesh.budgets")


class _Reserved(BudgetExhausted):
    """Nothing is left now, and something may be when the calls of others have ended."""


class Budgets:
    """The accounts as this process uses them.

    Args:
        store: opens the store, or answers the open one.
    """

    def __init__(self, store: Callable[[], Awaitable[BudgetStore]], clock: Clock) -> None:
        self._open, self.clock = store, clock
        self._opening = asyncio.Lock()
        self._store: BudgetStore | None = None
        self._settled: list[Charge] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Future[Refusal | None]] = set()
        self._expired_at = float("-inf")
        #: this process, by a name that no other has, and ids of what it holds
        self._holder, self._held = f"b_{secrets.token_hex(8)}", set[str]()
        self._renewing: asyncio.Task[None] | None = None

    def hold(self, run_id: str) -> Hold:
        """A new reservation of a run of this process."""
        return Hold(secrets.token_hex(12), run_id, self._holder, self.clock.now() + _LEASE)

    async def reserve(self, wants: Sequence[Want]) -> None:
        """Raises: BudgetExhausted: nothing is left in one of the accounts."""
        store = await self._opened()
        await self._expire(store)
        settled, self._settled = self._settled, []
        asking = asyncio.ensure_future(self._ask(store, wants, settled))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            refusal = await asyncio.shield(asking)
        except asyncio.CancelledError:  # the store does it all the same
            asking.add_done_callback(partial(self._give_back, wants))
            raise
        if refusal is not None:
            raise self._exhausted(refusal)
        if held := {want.hold.id for want in wants if want.hold}:
            self._held |= held
            self._keep_renewing()

    async def _ask(self, store: BudgetStore, wants: Sequence[Want], settled: list[Charge]) -> Refusal | None:
        try:
            return await store.reserve(wants, settled)
        except BaseException:  # nobody knows whether it was granted
            self._settled = settled + _unused(wants) + self._settled
            raise

    def _give_back(self, wants: Sequence[Want], asked: asyncio.Future[Refusal | None]) -> None:
        """Who asked for it is gone."""
        if not asked.cancelled() and asked.exception() is None and asked.result() is None:
            self.settle(_unused(wants))

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return await (await self._opened()).erase_owner(tenant, owner)

    def settle(self, charges: Sequence[Charge]) -> None:
        """Books what calls have cost, and ends what was reserved for them."""
        self._settled += charges
        self._held -= {charge.hold for charge in charges}
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY, self._begin)

    async def flush(self) -> None:
        """Returns when everything settled is in the store, or that does not answer."""
        while going := {*self._asking, *([self._writing] if self._writing else ())}:
            await asyncio.wait(going)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._write()

    async def close(self) -> None:
        """Everything settled is in the store, and nothing is reserved by this process any more."""
        await ended(self._renewing)
        await self.flush()
        if self._store is None:
            return
        try:
            await self._store.leave(self._holder)
        except AstromeshError as error:  # it ends when nobody renews it
            log.warning("budgets_not_left", error=str(error))

    async def _opened(self) -> BudgetStore:
        async with self._opening:
            if self._store is None:
                self._store = await self._open()
            return self._store

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
        except AstromeshError as error:  # the next one takes it along; until then it counts as reserved
            log.warning("budgets_not_settled", count=len(self._settled), error=str(error))

    def _keep_renewing(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        """Shows that this process lives, while it holds anything."""
        store = await self._opened()
        while self._held:
            await asyncio.sleep(_LEASE / 4)
            try:
                await store.renew(self._holder, self.clock.now() + _LEASE)
            except AstromeshError as error:  # the next one may work; until then they stand
                log.warning("budgets_not_renewed", count=len(self._held), error=str(error))

    async def _expire(self, store: BudgetStore) -> None:
        if self.clock.monotonic() - self._expired_at > _EXPIRY:
            self._expired_at = self.clock.monotonic()
            await store.expire()

    def _exhausted(self, refusal: Refusal) -> BudgetExhausted:
        account, key, reserved = refusal
        session = account.kind == "session"
        whose = f"spec.budgets.{'per_session' if session else 'per_principal_daily'} of {account.agent!r}"
        if reserved:
            span = "this session's" if session else "today's"
            return _Reserved(
                f"Runs under way have reserved the rest of {span} budget of {key}; send this again in a "
                f"moment ({whose}).",
                retry_after=_SOON,
            )
        if session:
            return BudgetExhausted(
                f"The budget of {key} for this session is used up; begin another session ({whose})."
            )
        left = _DAY - self.clock.now() % _DAY
        return BudgetExhausted(
            f"Today's budget of {key} is used up; a new one begins at midnight UTC ({whose}).",
            retry_after=left,
        )


def _unused(wants: Sequence[Want]) -> list[Charge]:
    """What ends reservations of which nothing was spent."""
    return [Charge(want.account, Amounts(), want.hold.id) for want in wants if want.hold]


class Accounts:
    """What a run is charged to: its agent's budgets, and those of all runs above it.

    Args:
        own: its agent's.
        scope: the run.
        above: of the run that it is nested in.

    `refused`: why its newest model call was not made.
    """

    def __init__(
        self,
        budgets: Budgets,
        own: Sequence[Limit],
        scope: Scope,
        owner: str,
        router: ModelRouter,
        above: Accounts | None,
    ) -> None:
        self._budgets, self._router, self._scope = budgets, router, scope
        self._own = tuple((limit, scope.session, owner) for limit in own)
        self.refused: BudgetExhausted | None = None
        self.all: Limits = (*self._own, *(above.all if above else ()))

    async def for_model(self, request: CompletionRequest) -> list[Want]:
        """Reserves the most that a call is thought to cost."""
        amounts = Amounts(
            estimate_request(request) + _answer(request),
            max(p.estimated_cost(request) for p in self._router.for_role(request.role).providers),
        )
        self.refused = None
        try:
            return await self._hold(self.all, amounts, ("tokens", "cost_usd"), self._waits)
        except BudgetExhausted as error:
            self.refused = error
            raise

    async def for_tool(self) -> None:
        if wants := self._wants(self.all, Amounts(tool_calls=1), ("tool_calls",)):
            await self._budgets.reserve(wants)

    async def for_time(self, seconds: float) -> list[Want]:
        """Reserves a run's time. Time of nested runs is part of the time of those above."""
        keys, waits = ("tokens", "cost_usd", "wall_seconds"), self._waits and not self._scope.depth
        return await self._hold(self._own, Amounts(wall_seconds=seconds), keys, waits)

    def settle(self, held: Sequence[Want], spent: Amounts) -> None:
        """Books what was really spent of a reservation."""
        self._budgets.settle([Charge(want.account, spent, want.hold.id) for want in held if want.hold])

    @property
    def _waits(self) -> bool:
        """It was accepted: what others have reserved delays it, and does not end it."""
        return self._scope.journal is not None

    async def _hold(self, limits: Limits, amounts: Amounts, keys: Sequence[str], waits: bool) -> list[Want]:
        while True:
            wants = self._wants(limits, amounts, keys)
            wants = [want._replace(hold=self._budgets.hold(self._scope.run_id)) for want in wants]
            if not wants:
                return wants
            try:
                await self._budgets.reserve(wants)
            except _Reserved:
                if not waits:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return wants

    def _wants(self, limits: Limits, amounts: Amounts, keys: Sequence[str]) -> list[Want]:
        now = self._budgets.clock.now()
        return [
            Want(_account(limit, key, owner, now), amounts, Caps(**{k: getattr(limit.caps, k) for k in keys}))
            for limit, key, owner in limits
        ]


def _account(limit: Limit, key: SessionKey, owner: str, now: float) -> Account:
    if limit.kind == "session":
        return Account("session", key.tenant, key.agent, key.session_id, owner, now + _SESSION)
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    ends = now - now % _DAY + _DAY
    return Account("day", key.tenant, key.agent, f"{today} {owner}", owner, ends + _DAY)


def _answer(request: CompletionRequest) -> int:
    most = request.parameters.get("max_tokens", USUAL_ANSWER)
    return most if isinstance(most, int) else USUAL_ANSWER


class PaidModel(RunModel):
    """The model seam of a run that is charged to accounts."""

    __slots__ = ("_accounts",)

    def charge(self, accounts: Accounts) -> None:
        self._accounts = accounts

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        held = await self._accounts.for_model(request)
        try:
            result = await super().complete(request)
        except BaseException as error:
            self._accounts.settle(held, _broken(error, request, 0))
            raise
        self._accounts.settle(held, _amounts(result.usage))
        return result

    async def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | BrokeOff | CompletionResult]:
        held = await self._accounts.for_model(request)
        said = 0
        spent: Amounts | None = None
        try:
            async with aclosing(super().stream(request)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    if isinstance(piece, Delta):
                        said += size_of(piece.content)
                    elif isinstance(piece, CompletionResult):
                        spent = _amounts(piece.usage)
                    yield piece
        except BaseException as error:
            spent = spent or _broken(error, request, said)
            raise
        finally:
            self._accounts.settle(held, spent or _broken(GeneratorExit(), request, said))


def _amounts(usage: Usage) -> Amounts:
    return Amounts(usage.input_tokens + usage.output_tokens, usage.cost_usd)


def _broken(error: BaseException, request: CompletionRequest, said: int) -> Amounts:
    """What a call without a result cost: as the run's ledger has it (`node.calls`); `said`: bytes of it."""
    usage = charged(error)
    if usage is None and (said or isinstance(error, (asyncio.CancelledError, GeneratorExit))):
        usage = Usage(estimate_request(request), of_bytes(said), estimated=True)
    return _amounts(usage) if usage is not None else Amounts()


class PaidTools:
    """A ToolPort whose calls are charged to accounts."""

    def __init__(self, tools: ToolPort, accounts: Accounts) -> None:
        self._tools, self._accounts = tools, accounts

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._tools.specs()

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        try:
            await self._accounts.for_tool()
        except BudgetExhausted as error:
            told = _NO_MORE_CALLS.format(error)
            return ToolResult(call.id, call.name, told, False, error.code)
        return await self._tools.execute(call, context)


def accounts_of(scope: Scope | None) -> Accounts | None:
    """The accounts of a run, or of one that another is nested in."""
    found: Accounts | None = scope.accounts if scope is not None else None  # type: ignore[assignment]
    return found


def answered(scope: Scope, stop_reason: str) -> None:
    """Checks that a run which a budget has stopped had begun.

    Raises:
        BudgetExhausted: its first call was refused: it has cost nothing, and there is no answer to keep.
    """
    accounts = accounts_of(scope)
    if stop_reason != "budget" or accounts is None or accounts.refused is None:
        return
    if not scope.ledger.usage.total_tokens:
        raise accounts.refused


def model_of(agent: Agent, scope: Scope, owner: str, outer: Scope | None, budgets: Budgets) -> RunModel:
    """The model seam of a run, charged where its agent or one above it has stored budgets."""
    schema = agent.output_schema.json_schema if agent.output_schema else None
    above = accounts_of(outer)
    if not agent.limits and above is None:
        return RunModel(agent.router, scope, schema)
    paid = PaidModel(agent.router, scope, schema)
    scope.accounts = accounts = Accounts(budgets, agent.limits, scope, owner, agent.router, above)
    paid.charge(accounts)
    return paid


def tools_of(tools: ToolPort, scope: Scope) -> ToolPort:
    """Tools whose calls are charged where the run is."""
    accounts = accounts_of(scope)
    return tools if accounts is None else PaidTools(tools, accounts)
