"""Containers that refuse to change, for what a READONLY node is shown."""

from __future__ import annotations

from typing import Any, NoReturn


def refuse(self: object, *arguments: object, **keywords: object) -> NoReturn:
    raise TypeError("A READONLY node may not write to context, plan or observations.")


class FrozenDict(dict[str, Any]):
    """A view of a dict that refuses to change; `shown` is what it shows."""

    __slots__ = ("shown",)

    def __init__(self, shown: dict[str, Any]) -> None:
        super().__init__(shown)
        self.shown = shown

    __setitem__ = __delitem__ = __ior__ = refuse
    clear = pop = popitem = setdefault = update = refuse


class FrozenList(list[Any]):
    """A list that refuses to change."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = refuse
    append = clear = extend = insert = pop = remove = reverse = sort = refuse


def engine_forget(context: dict[str, Any], key: str) -> None:
    """Forgets for the engine, as `engine_write` writes."""
    dict.pop(context, key, None)
    if isinstance(context, FrozenDict):
        engine_forget(context.shown, key)


def engine_write(context: dict[str, Any], key: str, value: Any) -> None:
    """Writes for the engine, which may whatever the node may not: into a view and what it shows."""
    if not isinstance(context, FrozenDict):
        context[key] = value
        return
    dict.__setitem__(context, key, value)
    engine_write(context.shown, key, value)
