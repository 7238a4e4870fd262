"""Charges the models, tools and time of runs to the budgets of sessions and principals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from astromesh.core.model_router import ModelRouter, RunModel
from astromesh.durable.base import BudgetAmounts, BudgetCaps, BudgetCharge, Reservation
from astromesh.durable.budgets import RETRY_SECONDS, BudgetLimit, Budgets, ReservedByOthers, account_of
from astromesh.errors import BudgetExhausted
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import Scope
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

#: tokens that are reserved for an answer without a limit
DEFAULT_ANSWER_TOKENS = 1024


_EXHAUSTED_RESULT = "{} Answer with what you have."


#: limits, with the session and the principal that they count for
AccountLimits = tuple[tuple[BudgetLimit, SessionKey, str], ...]


class Accounts:
    """The accounts that a run is charged to: those of its agent, and those of all runs above it.

    Args:
        above: The accounts of the run that it is nested in.

    Attributes:
        refused: Why the newest model call was not made.
    """

    def __init__(
        self, budgets: Budgets, agent: Agent, scope: Scope, owner: str, above: Accounts | None
    ) -> None:
        self._budgets, self._router, self._scope = budgets, agent.router, scope
        self._own = tuple((limit, scope.session, owner) for limit in agent.limits)
        self.refused: BudgetExhausted | None = None
        self.all: AccountLimits = (*self._own, *(above.all if above else ()))

    async def for_model(self, request: CompletionRequest) -> list[Reservation]:
        """Reserves the estimated maximum cost of a call."""
        amounts = BudgetAmounts(
            estimate_request(request) + _answer_tokens(request),
            max(p.estimated_cost(request) for p in self._router.for_role(request.role).providers),
        )
        self.refused = None
        try:
            return await self._reserve(self.all, amounts, ("tokens", "cost_usd"), self._may_wait)
        except BudgetExhausted as error:
            self.refused = error
            raise

    async def for_tool(self) -> None:
        if wants := self._wants(self.all, BudgetAmounts(tool_calls=1), ("tool_calls",)):
            await self._budgets.reserve(wants)

    async def for_time(self, seconds: float) -> list[Reservation]:
        """Reserves a run's time. Time of nested runs is part of the time of those above."""
        keys, waits = ("tokens", "cost_usd", "wall_seconds"), self._may_wait and not self._scope.depth
        return await self._reserve(self._own, BudgetAmounts(wall_seconds=seconds), keys, waits)

    def settle(self, reserved: Sequence[Reservation], spent: BudgetAmounts) -> None:
        """Charges the actual cost of a reservation."""
        self._budgets.settle(
            [BudgetCharge(want.account, spent, want.hold.id) for want in reserved if want.hold]
        )

    @property
    def _may_wait(self) -> bool:
        """Whether the run is durable: reservations of others delay it and do not end it."""
        return self._scope.journal is not None

    async def _reserve(
        self, limits: AccountLimits, amounts: BudgetAmounts, keys: Sequence[str], waits: bool
    ) -> list[Reservation]:
        while True:
            wants = self._wants(limits, amounts, keys)
            wants = [want._replace(hold=self._budgets.hold(self._scope.run_id)) for want in wants]
            if not wants:
                return wants
            try:
                await self._budgets.reserve(wants)
            except ReservedByOthers:
                if not waits:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return wants

    def _wants(self, limits: AccountLimits, amounts: BudgetAmounts, keys: Sequence[str]) -> list[Reservation]:
        now = self._budgets.clock.now()
        return [
            Reservation(
                account_of(limit, key, owner, now),
                amounts,
                BudgetCaps(**{k: getattr(limit.caps, k) for k in keys}),
            )
            for limit, key, owner in limits
        ]


def _answer_tokens(request: CompletionRequest) -> int:
    most = request.parameters.get("max_tokens", DEFAULT_ANSWER_TOKENS)
    return most if isinstance(most, int) else DEFAULT_ANSWER_TOKENS


class ChargedModel(RunModel):
    """The model of a run whose calls are charged to accounts."""

    __slots__ = ("_accounts",)

    def __init__(
        self, router: ModelRouter, scope: Scope, schema: Mapping[str, Any] | None, accounts: Accounts
    ) -> None:
        super().__init__(router, scope, schema)
        self._accounts = accounts

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        reserved = await self._accounts.for_model(request)
        try:
            result = await super().complete(request)
        except BaseException as error:
            self._accounts.settle(reserved, _partial_amounts(error, request, 0))
            raise
        self._accounts.settle(reserved, _amounts(result.usage))
        return result

    async def stream(
        self, request: CompletionRequest
    ) -> AsyncGenerator[Delta | StreamBroken | CompletionResult, None]:
        reserved = await self._accounts.for_model(request)
        received = 0
        spent: BudgetAmounts | None = None
        try:
            async with aclosing(super().stream(request)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Delta):
                        received += utf8_size(piece.content)
                    elif isinstance(piece, CompletionResult):
                        spent = _amounts(piece.usage)
                    yield piece
        except BaseException as error:
            spent = spent or _partial_amounts(error, request, received)
            raise
        finally:
            self._accounts.settle(reserved, spent or _partial_amounts(GeneratorExit(), request, received))


def _amounts(usage: Usage) -> BudgetAmounts:
    return BudgetAmounts(usage.input_tokens + usage.output_tokens, usage.cost_usd)


def _partial_amounts(error: BaseException, request: CompletionRequest, received: int) -> BudgetAmounts:
    """Returns the cost of a call without a result, as the ledger of the run books it (`graph.calls`).

    Args:
        received: Bytes of the answer.
    """
    usage = attached_usage(error)
    if usage is None and (received or isinstance(error, (asyncio.CancelledError, GeneratorExit))):
        usage = Usage(estimate_request(request), estimate_size(received), estimated=True)
    return _amounts(usage) if usage is not None else BudgetAmounts()


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


def require_progress(ledger: RunLedger, accounts: Accounts) -> None:
    """Checks that a run which a budget has stopped has called a model.

    Raises:
        BudgetExhausted: its first call was refused: the run has cost nothing, and has no answer.
    """
    if accounts.refused is not None and not ledger.usage.total_tokens:
        raise accounts.refused
