"""The calls of principals over all processes of one PostgreSQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from astromesh.access.call_limits import CallState, Principal, Window, state_of
from astromesh.plugins import Deps
from astromesh.storage.postgres import GroupCommit, PostgresQueries, PostgresStore
from astromesh.storage.queries import Dialect, Row
from astromesh.telemetry.clock import Clock
from astromesh.tools.base import RateLimit

#: batches between two deletions of rows that count no longer
_EXPIRE_BATCHES = 1024
#: parts of the statement `take`: what of a row belongs to the window of the new call, and what it leaves
_NEXT = "floor(EXCLUDED.at) - floor(w.at)"
_CALLS = f"(CASE WHEN {_NEXT} <= 0 THEN w.calls ELSE 0 END)"
_EARLIER = f"(CASE WHEN {_NEXT} <= 0 THEN w.earlier WHEN {_NEXT} = 1 THEN w.calls ELSE 0 END)"
_PART = "(1 - (EXCLUDED.at - floor(EXCLUDED.at)))"
_ROOM = f"greatest(0, floor($5 - {_CALLS} - {_EARLIER} * {_PART}))::bigint"


class SharedCallLimit(PostgresStore):
    """The calls of all processes."""

    package: ClassVar[str] = "astromesh.access"
    name: ClassVar[str] = "call_limits"

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        max_calls: int = Field(ge=1, description="Calls of a principal in a window.")
        window_seconds: float = Field(gt=0, description="Seconds of a window.")

    def __init__(self, queries: PostgresQueries, clock: Clock) -> None:
        super().__init__(queries, clock)
        self.limit = RateLimit(1, 1.0)
        self._taking: GroupCommit[Principal, CallState] = GroupCommit(self._take_all)
        self._batches = 0

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        return {"calls": _CALLS, "earlier": _EARLIER, "room": _ROOM}

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Self:  # type: ignore[override]
        store = await super().open(options, deps)
        store.limit = RateLimit(options.max_calls, options.window_seconds)
        return store

    async def take(self, principal: Principal) -> CallState:
        return await self._taking(principal)

    async def _take_all(self, calls: Sequence[Principal]) -> Sequence[CallState]:
        counts = Counter(calls)
        columns = [[one[0] for one in counts], [one[1] for one in counts], list(counts.values())]
        rows = await self._queries.write("take", *columns, self.limit.window_seconds, self.limit.max_calls)
        self._batches += 1
        if self._batches % _EXPIRE_BATCHES == 0:
            await self._queries.write("expire", self.limit.window_seconds)
        found: dict[Principal, Row] = {(row[0], row[1]): row for row in rows}
        left = Counter({principal: row[5] for principal, row in found.items()})
        states = list[CallState]()
        for principal in calls:
            allowed = left[principal] > 0
            left[principal] -= 1
            _, _, at, count, earlier, _ = found[principal]
            states.append(state_of(Window(at, count, earlier), self.limit, allowed=allowed))
        return states
