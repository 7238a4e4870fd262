"""Conversations and events in memory; they are lost when the process ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from typing import ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.memory.base import (
    NO_SESSION,
    EpisodicOptions,
    OwnedEvent,
    RecalledTurns,
    SessionInfo,
    SessionLeases,
    Summary,
    encode_events,
    no_session,
)
from astromesh.plugins import Deps
from astromesh.storage.migrations import expire_periodically
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import JsonObject, SessionKey, Turn

# -- events --------------------------------------------------------------------------------------------------


class InMemoryEventOptions(EpisodicOptions):
    max_sessions: int = Field(
        10_000, ge=1, description="Sessions stored; beyond that, the least recently used is deleted."
    )


class _Event(NamedTuple):
    number: int
    owner: str
    text: str
    expires_at: float


class InMemoryEvents:
    """An EpisodicStore in memory."""

    Options: ClassVar[type[BaseModel]] = InMemoryEventOptions

    def __init__(self, options: InMemoryEventOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._numbers = count(1)
        self._events: OrderedDict[SessionKey, list[_Event]] = OrderedDict()

    @classmethod
    async def open(cls, options: InMemoryEventOptions, deps: Deps) -> Self:
        store = cls(options, deps.clock)
        await deps.resources.shared((cls, id(store)), lambda: expire_periodically(store.expire, deps.clock))
        return store

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        expires_at = now + self._options.ttl if self._options.ttl else 0.0
        stored = self._events.setdefault(key, [])
        stored += [_Event(next(self._numbers), owner, text, expires_at) for text in encode_events(events)]
        del stored[: -self._options.keep]
        self._events.move_to_end(key)
        if len(self._events) > self._options.max_sessions:
            self._events.popitem(last=False)

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        now = self._clock.now()
        found = [e for e in self._events.get(key, ()) if owner in (None, e.owner) and _is_alive(e, now)]
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
            for key, events in self._events.items()
            if key.tenant == tenant
            for e in events
            if e.owner == owner and e.number > after and _is_alive(e, now)
        ]
        return tuple(sorted(found, key=lambda one: one.number)[:limit])

    async def erase(self, key: SessionKey) -> None:
        self._events.pop(key, None)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        keys = [key for key in self._events if key.tenant == tenant]
        return sum(
            self._replace_events(key, [e for e in self._events[key] if e.owner != owner]) for key in keys
        )

    async def expire(self, now: float) -> int:
        return sum(
            self._replace_events(key, [e for e in self._events[key] if _is_alive(e, now)])
            for key in [*self._events]
        )

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        self._events.clear()

    def _replace_events(self, key: SessionKey, remaining: list[_Event]) -> int:
        removed = len(self._events[key]) - len(remaining)
        self._events[key] = remaining
        if not remaining:
            del self._events[key]
        return removed


def _is_alive(event: _Event, now: float) -> bool:
    return not 0 < event.expires_at <= now


class InMemoryOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_sessions: int = Field(
        10_000, ge=1, description="Sessions stored; beyond that, the least recently used is deleted."
    )


class _Session:
    __slots__ = ("created_at", "expires_at", "owner", "summary", "turns", "updated_at")

    def __init__(self, owner: str, now: float) -> None:
        self.owner = owner
        self.created_at = self.updated_at = now
        self.expires_at = 0.0
        self.turns: list[Turn] = []
        self.summary: Summary | None = None

    def info(self, key: SessionKey) -> SessionInfo:
        return SessionInfo(key.session_id, self.owner, len(self.turns), self.created_at, self.updated_at)


class InMemoryConversations:
    """A ConversationStore in memory.

    Args:
        max_sessions: sessions stored at most.
    """

    Options: ClassVar[type[BaseModel]] = InMemoryOptions
    leases: SessionLeases | None = None

    def __init__(self, max_sessions: int = 10_000, clock: Clock | None = None) -> None:
        self._max_sessions = max_sessions
        self._clock: Clock = clock or SystemClock()
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        store = cls(options.max_sessions, deps.clock)
        await deps.resources.shared((cls, id(store)), lambda: expire_periodically(store.expire, deps.clock))
        return store

    async def recall(self, key: SessionKey, limit: int) -> RecalledTurns:
        session = self._live_session(key)
        if session is None:
            return NO_SESSION
        self._sessions.move_to_end(key)
        turns = tuple(session.turns[-limit:]) if limit > 0 else ()
        return RecalledTurns(turns, session.summary, session.owner, len(session.turns))

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        now = self._clock.now()
        session = self._live_session(key) or self._create_session(key, owner, now)
        if session.owner != owner:
            raise no_session(key)
        last = len(session.turns)
        session.turns += [
            t._replace(seq=seq, created_at=round(t.created_at or now, 3))
            for seq, t in enumerate(turns, last + 1)
        ]
        session.updated_at, session.expires_at = now, expires_at
        self._sessions.move_to_end(key)
        return len(session.turns)

    async def written(self, key: SessionKey, run_id: str) -> bool:
        session = self._live_session(key)
        return session is not None and any(turn.run_id == run_id for turn in session.turns)

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        session = self._live_session(key)
        if session is not None and _upto(session) < summary.upto <= len(session.turns):
            session.summary = summary

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        session = self._live_session(key)
        return tuple(session.turns[after : after + limit]) if session else ()

    async def info(self, key: SessionKey) -> SessionInfo | None:
        session = self._live_session(key)
        return session.info(key) if session else None

    async def sessions(
        self, tenant: str, agent: str, *, owner: str | None = None, after: str = "", limit: int = 50
    ) -> tuple[SessionInfo, ...]:
        found = [
            session.info(key)
            for key in list(self._sessions)
            if (key.tenant, key.agent) == (tenant, agent) and key.columns[2] > after
            if (session := self._live_session(key)) and owner in (None, session.owner)
        ]
        return tuple(sorted(found, key=lambda info: (info.session_id, info.owner))[:limit])

    async def owned(
        self, tenant: str, owner: str, *, after: SessionKey | None = None, limit: int = 50
    ) -> tuple[SessionKey, ...]:
        found = [
            key
            for key in list(self._sessions)
            if key.tenant == tenant and (after is None or key > after)
            if (session := self._live_session(key)) and session.owner == owner
        ]
        return tuple(sorted(found)[:limit])

    async def erase(self, key: SessionKey) -> bool:
        return self._sessions.pop(key, None) is not None

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return self._delete([k for k, s in self._sessions.items() if (k.tenant, s.owner) == (tenant, owner)])

    async def expire(self, now: float) -> int:
        return self._delete([key for key, s in self._sessions.items() if 0 < s.expires_at <= now])

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        self._sessions.clear()

    def _live_session(self, key: SessionKey) -> _Session | None:
        session = self._sessions.get(key)
        if session is not None and 0 < session.expires_at <= self._clock.now():
            del self._sessions[key]
            return None
        return session

    def _create_session(self, key: SessionKey, owner: str, now: float) -> _Session:
        while len(self._sessions) >= self._max_sessions:
            self._sessions.popitem(last=False)
        session = self._sessions[key] = _Session(owner, now)
        return session

    def _delete(self, keys: Sequence[SessionKey]) -> int:
        for key in keys:
            del self._sessions[key]
        return len(keys)


def _upto(session: _Session) -> int:
    return session.summary.upto if session.summary else 0
