"""Private copies of values, for nodes that work at the same time.

Containers (dict, list, set) are copied at every depth, other values are not: copying runs foreign code.
"""

from __future__ import annotations

from typing import Any

_CONTAINERS = frozenset({dict, list, set})


class Copies:
    """Copies values, and finds the original of a copy that nobody has changed."""

    __slots__ = ("_copies", "_origins")

    def __init__(self) -> None:
        #: copies by identity of the original, for aliases and cycles, and originals by that of the copy
        self._copies: dict[int, Any] = {}
        self._origins: dict[int, Any] = {}

    def keep(self, value: Any) -> None:
        """Makes no copy of a value, wherever it stands."""
        self._copies[id(value)] = value

    def copy(self, value: Any) -> Any:
        """Returns a copy of a container, any other value itself."""
        return value if type(value) not in _CONTAINERS else self._made(value)

    def _made(self, value: Any) -> Any:
        found = self._copies.get(id(value))
        if found is None:  # noted before its items, which may contain it
            found = self._copies[id(value)] = value.copy()
            self._origins[id(found)] = value
            if type(value) is not set:
                for key, item in value.items() if type(value) is dict else enumerate(value):
                    if type(item) in _CONTAINERS:
                        found[key] = self._made(item)
        return found

    def restored(self, value: Any) -> Any:
        """Returns the original of a copy that has not changed, any other value itself."""
        origin = self._origins.get(id(value), value)
        return origin if origin is value or is_same(origin, value) else value


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal. Values that cannot be compared are not."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 (comparing runs foreign code: arrays have no truth value)
        return False
