"""JSON that is the same in every call, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from astromesh.types import ToolSpec

_MOST = 256


class FragmentCache:
    """The JSON of offered tools by the identity of their specs.

    Args:
        shape: specs to the wire's own form.
    """

    __slots__ = ("_made", "_shape")

    def __init__(self, shape: Callable[[tuple[ToolSpec, ...]], Any]) -> None:
        self._shape = shape
        # the specs are kept beside their ids: an id says nothing once its object is gone
        self._made: dict[tuple[int, ...], tuple[tuple[ToolSpec, ...], orjson.Fragment]] = {}

    def of(self, tools: tuple[ToolSpec, ...]) -> orjson.Fragment:
        key = tuple(map(id, tools))
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= _MOST:
                self._made.clear()
            found = tools, orjson.Fragment(orjson.dumps(self._shape(tools), default=dict))
            self._made[key] = found
        return found[1]
