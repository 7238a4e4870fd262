"""The budget ledger of a run: what was spent, and what may still be spent.

Keys are the names of budgets: `tokens`, `cost_usd`, `tool_calls`, `model_calls` and those of a pattern
(`steps`, `critique_rounds`, …). A key without a cap is only counted. A nested run has a child ledger that
charges its parents too, so that a tree of runs stays within the budget of its root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astromesh.errors import BudgetExhausted
from astromesh.types import Usage

_NO_USAGE = Usage()
#: The budgets of model calls, and of all calls.
MODEL_KEYS = ("tokens", "cost_usd", "model_calls")
_KEYS = (*MODEL_KEYS, "tool_calls")


class RunLedger:
    """What was spent, and what may still be spent.

    Args:
        caps: The limit of each key. A missing key has none.
        parent: A ledger that is charged as well.
    """

    __slots__ = ("caps", "parent", "usage", "used")

    def __init__(self, caps: Mapping[str, float] | None = None, parent: RunLedger | None = None) -> None:
        self.caps: dict[str, float] = dict(caps) if caps else {}
        self.used: dict[str, float] = {}
        self.parent = parent
        self.usage = _NO_USAGE

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

    def reserve_model_call(self) -> None:
        """Counts a model call before it is made.

        Raises:
            BudgetExhausted: Tokens, cost or model calls are used up. Nothing is counted.
        """
        ledger: RunLedger | None = self
        while ledger is not None:
            if ledger.caps and (key := ledger.exhausted(MODEL_KEYS)):
                raise BudgetExhausted(f"The run's budget of {key} is used up.")
            ledger = ledger.parent
        ledger = self
        while ledger is not None:
            ledger.used["model_calls"] = ledger.used.get("model_calls", 0) + 1
            ledger = ledger.parent

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

    def exhausted(self, keys: Sequence[str] = _KEYS) -> str:
        """Returns the first of these keys that is used up here or in a parent, or an empty string."""
        ledger: RunLedger | None = self
        while ledger is not None:
            for key in keys if ledger.caps else ():
                if key in ledger.caps and ledger.caps[key] <= ledger.used.get(key, 0):
                    return key
            ledger = ledger.parent
        return ""
