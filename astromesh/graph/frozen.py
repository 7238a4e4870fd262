"""READONLY: a state whose context, plan and observations cannot be written, and say so when it is tried."""

from __future__ import annotations

from typing import Any

from astromesh.graph.containers import FrozenDict, FrozenList, refuse
from astromesh.graph.state import GraphState

_LOCKED = frozenset({"context", "plan", "observations"})


class ReadOnlyState(GraphState):
    """A view that cannot be given other containers either."""

    __slots__ = ("locked",)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _LOCKED and getattr(self, "locked", False):
            refuse(self)
        super().__setattr__(name, value)


def frozen(state: GraphState) -> ReadOnlyState:
    """A read-only view of a state; values inside are not copied."""
    other = ReadOnlyState.__new__(ReadOnlyState)
    for slot in GraphState.__slots__:
        setattr(other, slot, getattr(state, slot))
    other.context = FrozenDict(state.context)
    other.plan, other.observations = FrozenList(state.plan), FrozenList(state.observations)
    other.locked = True
    return other
