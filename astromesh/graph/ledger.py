"""The budget ledger of a run: what was spent, and what may still be spent.

Keys are the names of budgets: `tokens`, `cost_usd`, `tool_calls`, `model_calls` and those of a pattern
(`steps`, `critique_rounds`, …). A key without a cap is only counted. A nested run has a child ledger that
charges its parents too, so that a tree of runs stays within the budget of its root.

A model call under a cap of `tokens` or `cost_usd` is reserved before it is made: its estimated prompt and the
most tokens that its answer may have. Concurrent calls of the whole tree therefore never spend more than the
cap, except for the error of their prompt estimates. `claim` makes that reservation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from msgspec import convert, to_builtins
from msgspec.structs import replace

from astromesh.errors import BudgetExhausted
from astromesh.providers.base import Provider
from astromesh.tokens import FIRST_ANSWER_TOKENS, estimate_request
from astromesh.types import CompletionRequest, JsonObject, Usage

# -- the most that a model call may cost: what a budget reserves before it is made ------------------------


#: a call is not made if less than this is left for its answer
MIN_ANSWER_TOKENS = 16


class CallBounds(NamedTuple):
    """What a model call costs at most.

    Args:
        prompt_tokens: estimated.
        answer_tokens: the limit of the answer.
        prompt_usd: US dollars of the prompt.
        token_usd: US dollars of each token of the answer.
    """

    prompt_tokens: float
    answer_tokens: int
    prompt_usd: float = 0.0
    token_usd: float = 0.0

    @property
    def least(self) -> int:
        """The tokens of an answer below which the call is not made."""
        return min(MIN_ANSWER_TOKENS, self.answer_tokens)

    def answer_within(self, key: str, left: float) -> float:
        """Returns the tokens of an answer that fit what is left of `tokens` or `cost_usd`."""
        if key == "tokens":
            return left - self.prompt_tokens
        if not self.token_usd:
            return float("inf") if self.prompt_usd <= left else -1.0
        return (left - self.prompt_usd) / self.token_usd

    def amount(self, key: str, answer_tokens: float) -> float:
        """Returns what a call costs whose answer has so many tokens."""
        if key == "tokens":
            return self.prompt_tokens + answer_tokens
        return self.prompt_usd + self.token_usd * answer_tokens


def bounds_of(model: Any, request: CompletionRequest) -> CallBounds:
    """Returns the bounds of a call of a `ModelPort`. An object that states none has no price.

    A router states them itself, by its method `bounds`. For a `Provider` they follow from its protocol.
    """
    if (own := getattr(model, "bounds", None)) is not None:
        bounds: CallBounds = own(request)
        return bounds
    return bounds_of_providers((model,) if hasattr(model, "estimated_cost") else (), request)


def bounds_of_providers(
    providers: Iterable[Provider],
    request: CompletionRequest,
    correction: float = 1.0,
    usual: int = FIRST_ANSWER_TOKENS,
) -> CallBounds:
    """Returns the bounds of a call that any of these providers may answer.

    Args:
        correction: factor from estimated tokens to those that the model counts.
        usual: tokens of an answer for which neither the request nor the model's parameters set a limit.
    """
    providers = tuple(providers)
    tokens = request.parameters.get("max_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        tokens = max((provider.capabilities.answer_tokens or usual for provider in providers), default=usual)
    prompt_usd = token_usd = 0.0
    for provider in providers:
        first, last = (
            provider.estimated_cost(replace(request, parameters={**request.parameters, "max_tokens": count}))
            for count in (0, tokens)
        )
        prompt_usd = max(prompt_usd, first * correction)
        token_usd = max(token_usd, (last - first) / tokens)
    return CallBounds(estimate_request(request) * correction, tokens, prompt_usd, token_usd)


def limited(request: CompletionRequest, answer_tokens: int) -> CompletionRequest:
    """Returns the request with a limit of its answer."""
    return replace(request, parameters={**request.parameters, "max_tokens": answer_tokens})


# -- what was spent ---------------------------------------------------------------------------------------


_NO_USAGE = Usage()
#: The budgets that one call may exceed by itself, so that calls reserve them.
_RESERVED = ("tokens", "cost_usd")
#: The budgets of model calls, and of all calls.
MODEL_KEYS = ("tokens", "cost_usd", "model_calls")
_KEYS = (*MODEL_KEYS, "tool_calls")
#: Shared by all ledgers without reservations. Never written.
_NOTHING_HELD: dict[str, float] = {}


class Claim(NamedTuple):
    """The reservation of a model call that is being made.

    Args:
        ledger: Where the call is charged.
        answer_tokens: The most tokens that its answer may have.
        amounts: The reserved amount of each key.
    """

    ledger: RunLedger
    answer_tokens: int
    amounts: dict[str, float]

    def release(self) -> None:
        """Ends the reservation. The caller has charged what the call has cost."""
        for ledger in self.ledger.line():
            for key, amount in self.amounts.items():
                ledger.held[key] -= amount
        waiting, ledger.waiting = ledger.waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class OpenCall:
    """A model call under a cap, from its reservation to its end.

    Attributes:
        claim: The reservation of the try that is being made. None while the next one is not reserved.
        charged: What failed tries have cost, which the ledger has.
    """

    __slots__ = ("_ledger", "charged", "claim")

    def __init__(self, ledger: RunLedger, claim: Claim) -> None:
        self._ledger = ledger
        self.claim: Claim | None = claim
        self.charged = _NO_USAGE

    async def renew(self, usage: Usage, bounds: CallBounds) -> int:
        """Charges a failed try and reserves the next one. Returns the most tokens that its answer may have.

        Raises:
            BudgetExhausted: What is left does not fit another try.
        """
        self._ledger.add_usage(usage)
        self.charged += usage
        self.release()
        self.claim = await self._ledger.claim(bounds, counts=False)
        return self.claim.answer_tokens

    def release(self) -> None:
        """Ends the reservation."""
        claim, self.claim = self.claim, None
        if claim is not None:
            claim.release()


#: The model call that the current code makes under a cap. A router renews its reservation between tries.
OPEN_CALL: ContextVar[OpenCall | None] = ContextVar("astromesh_open_call", default=None)


class RunLedger:
    """What was spent, and what may still be spent.

    Args:
        caps: The limit of each key. A missing key has none.
        parent: A ledger that is charged as well.

    Attributes:
        held: What calls that are being made have reserved, by key.
        refused: The key of a cap, here or in a parent, that a model call did not fit. Empty without one.
        waiting: At the root, the calls that wait until another one ends.
    """

    __slots__ = ("caps", "held", "parent", "refused", "usage", "used", "waiting")

    def __init__(self, caps: Mapping[str, float] | None = None, parent: RunLedger | None = None) -> None:
        self.caps: dict[str, float] = dict(caps) if caps else {}
        self.used: dict[str, float] = {}
        self.parent = parent
        self.usage = _NO_USAGE
        self.held: dict[str, float] = _NOTHING_HELD
        self.refused = ""
        self.waiting: list[asyncio.Future[None]] = []

    def child(self, caps: Mapping[str, float] | None = None) -> RunLedger:
        return RunLedger(caps, self)

    def remaining(self, key: str) -> float:
        """Returns what is left of a key here and in every parent. Without a cap it is infinity."""
        own = self.caps.get(key, float("inf")) - self.used.get(key, 0)
        return min(own, self.parent.remaining(key)) if self.parent else own

    def try_spend(self, key: str, amount: float = 1) -> bool:
        """Spends an amount if every cap in the tree allows it. Otherwise spends nothing and returns False."""
        if self.remaining(key) < amount:
            return False
        self.spend(key, amount)
        return True

    def spend(self, key: str, amount: float = 1) -> None:
        """Charges what has already happened, even beyond the cap."""
        ledger: RunLedger | None = self
        while ledger is not None:
            ledger.used[key] = ledger.used.get(key, 0) + amount
            ledger = ledger.parent

    def line(self) -> Iterator[RunLedger]:
        """Yields this ledger and those above it, the root last."""
        ledger: RunLedger | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.parent

    @property
    def limits_calls(self) -> bool:
        """Whether a cap, here or in a parent, may limit the answer of a model call."""
        ledger: RunLedger | None = self
        while ledger is not None:
            if ledger.caps and ("tokens" in ledger.caps or "cost_usd" in ledger.caps):
                return True
            ledger = ledger.parent
        return False

    def reserve_model_call(self) -> None:
        """Counts a model call before it is made.

        Raises:
            BudgetExhausted: Tokens, cost or model calls are used up. Nothing is counted.
        """
        if self.parent is None and not self.caps:
            self.used["model_calls"] = self.used.get("model_calls", 0) + 1
            return
        ledger: RunLedger | None = self
        while ledger is not None:
            for key in MODEL_KEYS if ledger.caps else ():
                if key in ledger.caps and ledger.caps[key] <= ledger.used.get(key, 0):
                    self._refuse(key, ledger)
            ledger = ledger.parent
        ledger = self
        while ledger is not None:
            ledger.used["model_calls"] = ledger.used.get("model_calls", 0) + 1
            ledger = ledger.parent

    async def claim(self, bounds: CallBounds, *, counts: bool = True) -> Claim:
        """Reserves a model call, and waits while only calls that are being made leave it no room.

        Args:
            counts: Whether it is one more model call, and not another try of one.

        Raises:
            BudgetExhausted: What is left does not fit the call. Nothing is counted.
        """
        while (claim := self._try_claim(bounds, counts)) is None:
            *_, root = self.line()
            root.waiting.append(waiter := asyncio.get_running_loop().create_future())
            await waiter
        return claim

    def _try_claim(self, bounds: CallBounds, counts: bool) -> Claim | None:
        """Returns the reservation of a call, or None if the calls that are being made leave it no room."""
        fits: float = bounds.answer_tokens
        for ledger in self.line():
            for key in _RESERVED:
                if key not in ledger.caps:
                    continue
                left = ledger.caps[key] - ledger.used.get(key, 0)
                if left <= 0 or bounds.answer_within(key, left) < bounds.least:
                    self._refuse(key, ledger)
                fits = min(fits, bounds.answer_within(key, left - ledger.held.get(key, 0)))
        if fits < bounds.least:
            return None
        if counts:
            self.reserve_model_call()
        amounts = {key: bounds.amount(key, int(fits)) for key in _RESERVED}
        for ledger in self.line():
            held = ledger.held
            ledger.held = {key: held.get(key, 0) + amount for key, amount in amounts.items()}
        return Claim(self, int(fits), amounts)

    def _refuse(self, key: str, owner: RunLedger) -> None:
        """Notes the key in every ledger from here to the one whose cap is reached.

        Raises:
            BudgetExhausted: Always.
        """
        for ledger in self.line():
            ledger.refused = ledger.refused or key
            if ledger is owner:
                break
        if owner.caps[key] <= owner.used.get(key, 0):
            raise BudgetExhausted(f"The run's budget of {key} is used up.")
        raise BudgetExhausted(f"The run's budget of {key} has too little left for another model call.")

    def spent_in_tree(self, key: str) -> float:
        """Returns what the whole tree of runs has spent of a key."""
        return self.parent.spent_in_tree(key) if self.parent else self.used.get(key, 0)

    def add_usage(self, usage: Usage) -> None:
        """Charges the usage of a model call."""
        tokens = usage.input_tokens + usage.output_tokens
        if self.usage is _NO_USAGE and self.parent is None and "tokens" not in self.used:
            # The first call of a run without a parent.
            self.usage, self.used["tokens"], self.used["cost_usd"] = usage, tokens, usage.cost_usd
            return
        ledger: RunLedger | None = self
        while ledger is not None:
            before, used = ledger.usage, ledger.used
            ledger.usage = usage if before is _NO_USAGE else before + usage
            used["tokens"] = used.get("tokens", 0) + tokens
            used["cost_usd"] = used.get("cost_usd", 0.0) + usage.cost_usd
            ledger = ledger.parent

    def to_json(self) -> JsonObject:
        """Returns what was spent."""
        return {"usage": to_builtins(self.usage), "used": dict(self.used)}

    def add(self, record: JsonObject) -> None:
        """Charges what another ledger has spent, as its `to_json` wrote it."""
        self.add_usage(convert(record["usage"], Usage))
        for key, amount in record["used"].items():
            if key not in _RESERVED:
                self.spend(key, amount)

    def exhausted(self, keys: Sequence[str] = _KEYS) -> str:
        """Returns the first of these keys that is used up here or in a parent, or an empty string."""
        ledger: RunLedger | None = self
        while ledger is not None:
            for key in keys if ledger.caps else ():
                if key in ledger.caps and ledger.caps[key] <= ledger.used.get(key, 0):
                    return key
            ledger = ledger.parent
        return ""
