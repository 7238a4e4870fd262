"""Charges the models, tools and time of runs to the budgets of sessions and principals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from astromesh.core.model_router import ModelRouter, Renew, RunModel
from astromesh.durable.budgets import (
    RETRY_SECONDS,
    BudgetAccount,
    BudgetAmounts,
    BudgetCaps,
    BudgetCharge,
    BudgetLimit,
    BudgetRefusal,
    Budgets,
    Reservation,
    ReservedByOthers,
    account_of,
)
from astromesh.errors import BudgetExhausted
from astromesh.graph.ledger import RunLedger, limited
from astromesh.graph.scope import Scope
from astromesh.orchestration.base import Outcome
from astromesh.runtime.agent import Agent
from astromesh.tokens import estimate_request, estimate_size, utf8_size
from astromesh.tools.base import ToolContext, ToolPort
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    SessionKey,
    StreamBroken,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    attached_usage,
)

_NOTHING = BudgetAmounts()
#: what a model call costs
_CALL_KEYS = ("tokens", "cost_usd")
_EXHAUSTED_RESULT = "{} Answer with what you have."


#: limits, with the session and the principal that they count for
AccountLimits = tuple[tuple[BudgetLimit, SessionKey, str], ...]


class GrantedTime(NamedTuple):
    """The seconds that an account leaves a run."""

    seconds: float
    account: BudgetAccount


class Accounts:
    """The accounts that a run is charged to: those of its agent, and those of all runs above it.

    Args:
        above: The accounts of the run that it is nested in.

    Attributes:
        refused: Why a model call was not made, the newest one.
    """

    def __init__(
        self, budgets: Budgets, agent: Agent, scope: Scope, owner: str, above: Accounts | None
    ) -> None:
        self._budgets, self._router, self._scope = budgets, agent.router, scope
        self._own = tuple((limit, scope.session, owner) for limit in agent.limits)
        self.refused: BudgetExhausted | None = None
        self.all: AccountLimits = (*self._own, *(above.all if above else ()))

    async def for_model(self, request: CompletionRequest) -> tuple[list[Reservation], CompletionRequest]:
        """Reserves the most that a call costs.

        Returns:
            the reservations, and the request with an answer that fits them.

        Raises:
            BudgetExhausted: what is left does not fit the call.
        """
        bounds = self._router.bounds(request)
        most, least = (
            BudgetAmounts(*(bounds.amount(key, answer) for key in _CALL_KEYS))
            for answer in (bounds.answer_tokens, bounds.least)
        )
        try:
            reservations, grants = await self._reserve(self.all, most, _CALL_KEYS, self._may_wait, least)
        except BudgetExhausted as error:
            self.refused = error
            raise
        fits = [
            bounds.answer_within(key, getattr(grant, key))
            for want, grant in zip(reservations, grants, strict=True)
            for key in _CALL_KEYS
            if getattr(want.caps, key) is not None
        ]
        if not fits:
            return reservations, request
        return reservations, limited(request, max(int(min(*fits, bounds.answer_tokens)), bounds.least))

    async def for_tool(self) -> None:
        if reservations := self._reservations(self.all, BudgetAmounts(tool_calls=1), ("tool_calls",)):
            await self._budgets.reserve(reservations)

    async def for_time(self, seconds: float) -> tuple[list[Reservation], GrantedTime | None]:
        """Reserves a run's time. Time of nested runs is part of the time of those above.

        Returns:
            the reservations, and what is left of the budget with the least time; None: no budget limits it.
        """
        keys, waits = (*_CALL_KEYS, "wall_seconds"), self._may_wait and not self._scope.depth
        reservations, grants = await self._reserve(
            self._own, BudgetAmounts(wall_seconds=seconds), keys, waits
        )
        granted = [
            GrantedTime(grant.wall_seconds, want.account)
            for want, grant in zip(reservations, grants, strict=False)
            if grant.wall_seconds < seconds
        ]
        return reservations, min(granted, default=None, key=attrgetter("seconds"))

    def time_ran_out(self, account: BudgetAccount) -> None:
        """Notes that a budget of time has ended the run."""
        self.refused = self._budgets.exhausted(BudgetRefusal(account, "wall_seconds"))

    def settle(self, reserved: Sequence[Reservation], amounts: BudgetAmounts) -> None:
        """Charges the actual cost of a reservation."""
        self._budgets.settle(
            [BudgetCharge(want.account, amounts, want.hold.id) for want in reserved if want.hold]
        )

    @property
    def _may_wait(self) -> bool:
        """Whether the run is durable: reservations of others delay it and do not end it."""
        journal = self._scope.journal
        return journal is not None and journal.is_durable

    async def _reserve(
        self,
        limits: AccountLimits,
        amounts: BudgetAmounts,
        keys: Sequence[str],
        waits: bool,
        least: BudgetAmounts = _NOTHING,
    ) -> tuple[list[Reservation], tuple[BudgetAmounts, ...]]:
        while True:
            reservations = self._reservations(limits, amounts, keys)
            hold = self._budgets.hold
            reservations = [
                want._replace(hold=hold(self._scope.run_id), least=least) for want in reservations
            ]
            if not reservations:
                return reservations, ()
            try:
                granted = await self._budgets.reserve(reservations)
            except ReservedByOthers:
                if not waits:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return reservations, granted

    def _reservations(
        self, limits: AccountLimits, amounts: BudgetAmounts, keys: Sequence[str]
    ) -> list[Reservation]:
        now = self._budgets.clock.now()
        return [
            Reservation(
                account_of(limit, key, owner, now),
                amounts,
                BudgetCaps(**{k: getattr(limit.caps, k) for k in keys}),
            )
            for limit, key, owner in limits
        ]


class ChargedModel(RunModel):
    """The model of a run whose calls are charged to accounts."""

    __slots__ = ("_accounts",)

    def __init__(
        self,
        router: ModelRouter,
        scope: Scope,
        schema: Mapping[str, Any] | None,
        parameters: Mapping[str, Any],
        accounts: Accounts,
    ) -> None:
        super().__init__(router, scope, schema, parameters)
        self._accounts = accounts

    async def complete(self, request: CompletionRequest, renew: Renew | None = None) -> CompletionResult:
        charge = _CallCharge(self._accounts)
        request = await charge.reserve(request)
        try:
            result = await super().complete(request, charge.renew)
        except BaseException as error:
            charge.settle(_partial_usage(error, request, 0))
            raise
        charge.settle(result.usage)
        return result

    async def stream(
        self, request: CompletionRequest, renew: Renew | None = None
    ) -> AsyncGenerator[Delta | StreamBroken | CompletionResult, None]:
        charge = _CallCharge(self._accounts)
        request = await charge.reserve(request)
        received = 0
        usage: Usage | None = None
        try:
            async with aclosing(super().stream(request, charge.renew)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Delta):
                        received += utf8_size(piece.content)
                    elif isinstance(piece, CompletionResult):
                        usage = piece.usage
                    yield piece
        except BaseException as error:
            usage = usage or _partial_usage(error, request, received)
            raise
        finally:
            charge.settle(usage or _partial_usage(GeneratorExit(), request, received))


class _CallCharge:
    """The reservation of one model call in the accounts of its run."""

    __slots__ = ("_accounts", "_reserved", "_settled")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._reserved: Sequence[Reservation] = ()
        #: the cost of failed tries, which the accounts have
        self._settled = Usage()

    async def reserve(self, request: CompletionRequest) -> CompletionRequest:
        """Reserves a try; returns the request with an answer that fits. Raises: as `Accounts.for_model`."""
        self._reserved, request = await self._accounts.for_model(request)
        return request

    async def renew(self, request: CompletionRequest, usage: Usage) -> CompletionRequest:
        """Charges a failed try and reserves the next one. Raises: as `Accounts.for_model`."""
        self._accounts.settle(self._reserved, _amounts(usage))
        self._reserved, self._settled = (), self._settled + usage
        return await self.reserve(request)

    def settle(self, usage: Usage) -> None:
        """Charges the call with what is not charged yet, and ends its reservation."""
        self._accounts.settle(self._reserved, _amounts(usage - self._settled))


def _amounts(usage: Usage) -> BudgetAmounts:
    return BudgetAmounts(usage.input_tokens + usage.output_tokens, usage.cost_usd)


def _partial_usage(error: BaseException, request: CompletionRequest, received: int) -> Usage:
    """Returns the cost of a call without a result, as the ledger of the run books it (`graph.calls`).

    Args:
        received: Bytes of the answer.
    """
    usage = attached_usage(error)
    if usage is None and (received or isinstance(error, (asyncio.CancelledError, GeneratorExit))):
        usage = Usage(estimate_request(request), estimate_size(received), estimated=True)
    return usage or Usage()


class ChargedTools:
    """A ToolPort whose calls are charged to accounts."""

    def __init__(self, tools: ToolPort, accounts: Accounts) -> None:
        self._tools, self._accounts = tools, accounts

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._tools.specs()

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        try:
            await self._accounts.for_tool()
        except BudgetExhausted as error:
            return ToolResult(call.id, call.name, _EXHAUSTED_RESULT.format(error), False, error.code)
        return await self._tools.execute(call, context)


def ended_by_budget(outcome: Outcome, ledger: RunLedger, accounts: Accounts | None) -> Outcome:
    """Returns the outcome; if a budget has ended its run, with the budget that the run did not fit.

    Raises:
        BudgetExhausted: its first call was refused: the run has cost nothing, and has no answer.
    """
    refused = accounts.refused if accounts is not None else None
    budget = f"per_run.{ledger.refused}" if ledger.refused else refused.budget if refused is not None else ""
    if not budget and outcome.stop_reason != "budget":
        return outcome
    if refused is not None and not ledger.usage.total_tokens:
        raise refused
    return replace(outcome, stop_reason="budget", budget=budget or "graph")
