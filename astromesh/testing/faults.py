"""A seam that fails when a test says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


class Faulty:
    """Wraps any implementation of a seam; named methods raise first, then work as before.

    Args:
        wrapped: a real implementation, e.g. a conversation store.
        faults: by method name, what its next calls do: raise this error, or, for None, work.

    `calls` holds the names of the called methods, in order.
    """

    def __init__(self, wrapped: Any, **faults: Sequence[BaseException | None]) -> None:
        self.calls: list[str] = []
        self._wrapped = wrapped
        self._faults = {name: list(planned) for name, planned in faults.items()}

    def fail(self, name: str, *errors: BaseException | None) -> None:
        """Plans what the next calls of a method do."""
        self._faults.setdefault(name, []).extend(errors)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return found
        return self._async(name, found) if inspect.iscoroutinefunction(found) else self._sync(name, found)

    def _take(self, name: str) -> None:
        self.calls.append(name)
        planned = self._faults.get(name)
        if planned and (error := planned.pop(0)) is not None:
            raise error

    def _sync(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._take(name)
            return method(*args, **kwargs)

        return call

    def _async(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._take(name)
            return await method(*args, **kwargs)

        return call
