"""The five budgets of a run, kept on the one ledger that model and tool calls charge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astromesh.graph.reasoning.settings import BUDGETS, is_count
from astromesh.node.ledger import MODEL_KEYS, RunLedger


class Budgets:
    """Caps on a ledger, counted from now.

    The ledger may have been used before (a controller inside another graph): what was spent then does not
    count here, and `close` leaves the ledger's caps as they were.

    Args:
        ledger: of the graph's run.
        caps: most that may be spent from now on, by key.
    """

    def __init__(self, ledger: RunLedger, caps: Mapping[str, int]) -> None:
        self._ledger = ledger
        self._before = {key: ledger.caps.get(key) for key in caps}
        self._base = {key: ledger.used.get(key, 0) for key in caps}
        for key, cap in caps.items():
            most = self._base[key] + cap
            ledger.caps[key] = min(most, ledger.caps.get(key, most))

    def left(self, key: str) -> bool:
        """Whether one more may be spent, here and in every surrounding run."""
        return self._ledger.remaining(key) >= 1

    def try_spend(self, key: str) -> bool:
        return self._ledger.try_spend(key)

    @property
    def models_left(self) -> bool:
        """Whether another model call may be made: tokens and cost count too."""
        return not self._ledger.exhausted(MODEL_KEYS)

    def used(self) -> dict[str, int]:
        """What was spent so far."""
        return {key: int(self._ledger.used.get(key, 0) - base) for key, base in self._base.items()}

    def close(self) -> None:
        for key, cap in self._before.items():
            if cap is None:
                self._ledger.caps.pop(key, None)
            else:
                self._ledger.caps[key] = cap


def narrowed(caps: Mapping[str, int], *overrides: Any) -> tuple[dict[str, int], list[str]]:
    """Caps with a request's overrides, and what was wrong with these.

    Args:
        caps: of the configuration.
        overrides: mappings by key, or None; they may lower a cap and not raise it.
    """
    merged, errors = dict(caps), []
    for given in overrides:
        if given is None:
            continue
        if not isinstance(given, Mapping):
            errors.append("The budget must be an object of whole numbers; it is ignored.")
            continue
        for key, value in given.items():
            if fault := _fault(key, value, caps):
                errors.append(fault)
            if key in caps and is_count(value):
                merged[key] = min(merged[key], value)
    return merged, errors


def _fault(key: object, value: object, caps: Mapping[str, int]) -> str:
    if key not in BUDGETS:
        return f"There is no budget {str(key)[:40]!r}; it is ignored."
    if not is_count(value):
        return f"The budget {key!r} must be a whole number from 0; it is ignored."
    cap = caps[str(key)]
    return f"The budget {key!r} may not be raised above {cap}." if int(str(value)) > cap else ""
