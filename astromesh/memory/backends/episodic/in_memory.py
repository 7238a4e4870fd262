"""Events in the process, gone when it ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from typing import ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, Field

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.abc.stores import OwnedEvent
from astromesh.memory.backends.episodic.event import EpisodicOptions, packed
from astromesh.memory.backends.expiry import expiring
from astromesh.types import JsonObject, SessionKey


class InMemoryOptions(EpisodicOptions):
    max_sessions: int = Field(
        10_000, ge=1, description="Sessions kept; beyond that the one unused for longest is forgotten."
    )


class _Event(NamedTuple):
    number: int
    owner: str
    text: str
    expires_at: float


class InMemoryEvents:
    """An EpisodicStore without a file."""

    Options: ClassVar[type[BaseModel]] = InMemoryOptions

    def __init__(self, options: InMemoryOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._numbers = count(1)
        self._kept: OrderedDict[SessionKey, list[_Event]] = OrderedDict()

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        store = cls(options, deps.clock)
        await deps.resources.shared((cls, id(store)), lambda: expiring(store.expire, deps.clock))
        return store

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        expires_at = now + self._options.ttl if self._options.ttl else 0.0
        kept = self._kept.setdefault(key, [])
        kept += [_Event(next(self._numbers), owner, text, expires_at) for text in packed(events)]
        del kept[: -self._options.keep]
        self._kept.move_to_end(key)
        if len(self._kept) > self._options.max_sessions:
            self._kept.popitem(last=False)

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        now = self._clock.now()
        found = [e for e in self._kept.get(key, ()) if owner in (None, e.owner) and _lives(e, now)]
        return tuple(orjson.loads(e.text) for e in found[-limit:]) if limit > 0 else ()

    @property
    def place(self) -> Hashable:
        return id(self)

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        now = self._clock.now()
        found = [
            OwnedEvent(e.number, key.agent, key.session_id, orjson.loads(e.text))
            for key, events in self._kept.items()
            if key.tenant == tenant
            for e in events
            if e.owner == owner and e.number > after and _lives(e, now)
        ]
        return tuple(sorted(found, key=lambda one: one.number)[:limit])

    async def erase(self, key: SessionKey) -> None:
        self._kept.pop(key, None)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        keys = [key for key in self._kept if key.tenant == tenant]
        return sum(self._only(key, [e for e in self._kept[key] if e.owner != owner]) for key in keys)

    async def expire(self, now: float) -> int:
        return sum(self._only(key, [e for e in self._kept[key] if _lives(e, now)]) for key in [*self._kept])

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        self._kept.clear()

    def _only(self, key: SessionKey, kept: list[_Event]) -> int:
        gone = len(self._kept[key]) - len(kept)
        self._kept[key] = kept
        if not kept:
            del self._kept[key]
        return gone


def _lives(event: _Event, now: float) -> bool:
    return not 0 < event.expires_at <= now
