"""The budgets of an agent that are kept in a store: `spec.budgets.per_session`, `per_principal_daily`."""

from __future__ import annotations

from typing import Literal, NamedTuple

from astromesh.abc.budgets import Caps
from astromesh.config.agent import Budgets


class Limit(NamedTuple):
    """One of them."""

    kind: Literal["session", "day"]
    caps: Caps


def limits_of(budgets: Budgets) -> tuple[Limit, ...]:
    """Those that bound something; most agents have none."""
    found = (
        Limit("session", Caps(**budgets.per_session.caps())),
        Limit("day", Caps(**budgets.per_principal_daily.caps())),
    )
    return tuple(limit for limit in found if limit.caps != Caps())
