"""READONLY: a state whose context, plan and observations cannot be written, and say so when it is tried."""

from __future__ import annotations

from typing import Any, NoReturn

from astromesh.graph.state import GraphState

_LOCKED = frozenset({"context", "plan", "observations"})


def _refuse(self: object, *arguments: object, **keywords: object) -> NoReturn:
    raise TypeError("A READONLY node may not write to context, plan or observations.")


class FrozenDict(dict[str, Any]):
    """A view of a dict that refuses to change; `shown` is what it shows."""

    __slots__ = ("shown",)

    def __init__(self, shown: dict[str, Any]) -> None:
        super().__init__(shown)
        self.shown = shown

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class FrozenList(list[Any]):
    """A list that refuses to change."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse


class ReadOnlyState(GraphState):
    """A view that cannot be given other containers either."""

    __slots__ = ("locked",)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _LOCKED and getattr(self, "locked", False):
            _refuse(self)
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


def engine_write(context: dict[str, Any], key: str, value: Any) -> None:
    """Writes for the engine, which may whatever the node may not: into a view and what it shows."""
    dict.__setitem__(context, key, value)
    if isinstance(context, FrozenDict):
        engine_write(context.shown, key, value)
