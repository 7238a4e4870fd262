"""Conversations in the process, gone when it ends; at the bound the one unused for longest is forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.deps import Deps
from astromesh.abc.leases import SessionLeases
from astromesh.abc.stores import Recalled, SessionInfo, Summary
from astromesh.errors import SessionNotFound
from astromesh.memory.backends.expiry import expiring
from astromesh.types import SessionKey, Turn


class InMemoryOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_sessions: int = Field(
        10_000, ge=1, description="Sessions kept; beyond that the one unused for longest is forgotten."
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
    """A ConversationStore without a file.

    Args:
        max_sessions: bound on what is kept.
    """

    Options: ClassVar[type[BaseModel]] = InMemoryOptions
    leases: SessionLeases | None = None

    def __init__(self, max_sessions: int = 10_000, clock: Clock | None = None) -> None:
        self._most = max_sessions
        self._clock: Clock = clock or SystemClock()
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()

    @classmethod
    async def open(cls, options: InMemoryOptions, deps: Deps) -> Self:
        store = cls(options.max_sessions, deps.clock)
        await deps.resources.shared((cls, id(store)), lambda: expiring(store.expire, deps.clock))
        return store

    async def recall(self, key: SessionKey, limit: int) -> Recalled:
        session = self._alive(key)
        if session is None:
            return _NOTHING
        self._sessions.move_to_end(key)
        turns = tuple(session.turns[-limit:]) if limit > 0 else ()
        return Recalled(turns, session.summary, session.owner, len(session.turns))

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        now = self._clock.now()
        session = self._alive(key) or self._begin(key, owner, now)
        if session.owner != owner:
            raise SessionNotFound(f"There is no session {key.session_id!r}.")
        last = len(session.turns)
        session.turns += [
            t._replace(seq=seq, created_at=round(t.created_at or now, 3))
            for seq, t in enumerate(turns, last + 1)
        ]
        session.updated_at, session.expires_at = now, expires_at
        self._sessions.move_to_end(key)
        return len(session.turns)

    async def written(self, key: SessionKey, run_id: str) -> bool:
        session = self._alive(key)
        return session is not None and any(turn.run_id == run_id for turn in session.turns)

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        session = self._alive(key)
        if session is not None and _upto(session) < summary.upto <= len(session.turns):
            session.summary = summary

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        session = self._alive(key)
        return tuple(session.turns[after : after + limit]) if session else ()

    async def info(self, key: SessionKey) -> SessionInfo | None:
        session = self._alive(key)
        return session.info(key) if session else None

    async def sessions(
        self, tenant: str, agent: str, *, owner: str | None = None, after: str = "", limit: int = 50
    ) -> tuple[SessionInfo, ...]:
        found = [
            session.info(key)
            for key in list(self._sessions)
            if (key.tenant, key.agent) == (tenant, agent) and key.session_id > after
            if (session := self._alive(key)) and owner in (None, session.owner)
        ]
        return tuple(sorted(found, key=lambda info: info.session_id)[:limit])

    async def owned(
        self, tenant: str, owner: str, *, after: SessionKey | None = None, limit: int = 50
    ) -> tuple[SessionKey, ...]:
        found = [
            key
            for key in list(self._sessions)
            if key.tenant == tenant and (after is None or key > after)
            if (session := self._alive(key)) and session.owner == owner
        ]
        return tuple(sorted(found)[:limit])

    async def erase(self, key: SessionKey) -> bool:
        return self._sessions.pop(key, None) is not None

    async def erase_owner(self, tenant: str, owner: str) -> int:
        return self._drop([k for k, s in self._sessions.items() if (k.tenant, s.owner) == (tenant, owner)])

    async def expire(self, now: float) -> int:
        return self._drop([key for key, s in self._sessions.items() if 0 < s.expires_at <= now])

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        self._sessions.clear()

    def _alive(self, key: SessionKey) -> _Session | None:
        session = self._sessions.get(key)
        if session is not None and 0 < session.expires_at <= self._clock.now():
            del self._sessions[key]
            return None
        return session

    def _begin(self, key: SessionKey, owner: str, now: float) -> _Session:
        while len(self._sessions) >= self._most:
            self._sessions.popitem(last=False)
        session = self._sessions[key] = _Session(owner, now)
        return session

    def _drop(self, keys: Sequence[SessionKey]) -> int:
        for key in keys:
            del self._sessions[key]
        return len(keys)


def _upto(session: _Session) -> int:
    return session.summary.upto if session.summary else 0


_NOTHING = Recalled()
