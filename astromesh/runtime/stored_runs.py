"""`Runs` over the runs of this process and those that are kept on disk: one face for the routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from astromesh.abc.durable import ENDED, RunRow, RunStore, Wanted
from astromesh.abc.events import EventSink
from astromesh.errors import EventsGone, NotDurable, RunNotFound, StoreError
from astromesh.runtime.decisions import decided
from astromesh.runtime.durable import DurableRuns
from astromesh.runtime.elsewhere import Elsewhere
from astromesh.runtime.notes import Notes
from astromesh.runtime.registry import RunFilter, RunRegistry, Viewer, iso, not_so_far
from astromesh.telemetry.stream import TERMINAL
from astromesh.types import CallerContext, JsonObject, Usage

#: seconds between two looks for events of a run that another process works on, and of one that waits
_LOOK, _LOOK_WAITING = 0.075, 1.0
_PAGE = 1000


class Said(NamedTuple):
    """What a person decides.

    Args:
        arguments: of an approved call, instead of those that the model wrote.
        answer: to a question.
    """

    decision: Literal["approve", "deny", "answer"]
    arguments: JsonObject | None = None
    answer: object = None


class StoredRuns:
    """`Runs` of this process and of the database.

    Args:
        registry: the runs of this process.
        durable: those on disk.
        notes: what of the first is on its way to the second.
        elsewhere: asks other processes.
        patience: seconds that a cancel waits for the run's end.
    """

    def __init__(
        self,
        registry: RunRegistry,
        durable: DurableRuns,
        notes: Notes,
        elsewhere: Elsewhere,
        patience: float = 10.0,
    ) -> None:
        self._registry, self._durable, self._notes, self._patience = registry, durable, notes, patience
        self._elsewhere = elsewhere

    async def get(self, run_id: str, viewer: Viewer) -> JsonObject:
        return await self._elsewhere.once_noted(run_id, partial(self._get, run_id, viewer))

    async def _get(self, run_id: str, viewer: Viewer) -> JsonObject:
        row = await self._row(run_id, viewer, nested=True)
        if row is not None:
            return await self._told(await self._now(row))
        try:
            return await self._registry.get(run_id, viewer)
        except (RunNotFound, EventsGone):
            noted = await self._noted(run_id, viewer)
            if noted is None:
                raise
            return line_of(noted)

    async def follow(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        follow = partial(self._follow, run_id, viewer, after, sink)
        return await self._elsewhere.once_noted(run_id, follow)

    async def _follow(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        row = await self._row(run_id, viewer, nested=True)
        if row is None or self._store is None:
            return await self._follow_plain(run_id, viewer, after, sink)
        follower = _Follower(self._store, self._durable, row.run_id, after, sink)
        if row.status in ENDED:
            await follower.read()
            return None
        if after:
            seen = await self._store.events(row.run_id, after - 1, 1)
            if not seen:
                raise not_so_far(run_id, after)
            if seen[0].type in TERMINAL:
                return None
        return follower.start()

    async def _follow_plain(
        self, run_id: str, viewer: Viewer, after: int, sink: EventSink
    ) -> Callable[[], None] | None:
        try:
            return await self._registry.follow(run_id, viewer, after, sink)
        except RunNotFound:
            if await self._noted(run_id, viewer) is None:
                raise
            raise NotDurable(
                f"The run {run_id!r} is not durable: only the process that ran it has its events. "
                f"GET /v1/runs/{run_id} has what became of it."
            ) from None

    async def cancel(self, run_id: str, viewer: Viewer) -> JsonObject:
        row = await self._row(run_id, viewer)
        if row is None:
            return await self._cancel_plain(run_id, viewer)
        await self._ask_end(row)
        return await self._told(await self._ended(row))

    async def _cancel_plain(self, run_id: str, viewer: Viewer) -> JsonObject:
        try:
            return await self._registry.cancel(run_id, viewer)
        except (RunNotFound, EventsGone):
            line = await self._ended_elsewhere(run_id, viewer)
            line = line or await self._elsewhere.cancel(run_id, viewer)
            line = line or await self._ended_elsewhere(run_id, viewer)  # and its note has come meanwhile
            if line is None:
                raise
            return line

    async def _ended_elsewhere(self, run_id: str, viewer: Viewer) -> JsonObject | None:
        noted = await self._noted(run_id, viewer)
        return line_of(noted) if noted is not None and noted.status in ENDED else None

    async def stop(self, run_id: str, viewer: Viewer) -> bool:
        """Begins to cancel a run; False where it had ended."""
        row = await self._row(run_id, viewer)
        if row is None:
            try:
                return self._registry.stop(run_id, viewer)
            except RunNotFound:
                if await self._ended_elsewhere(run_id, viewer):
                    return False
                if await self._elsewhere.cancel(run_id, viewer) is not None:
                    return True
                if await self._ended_elsewhere(run_id, viewer) is None:
                    raise
                return False
        if row.status in ENDED:
            return False
        await self._ask_end(row)
        return True

    async def _ask_end(self, row: RunRow) -> None:
        if self._store is not None and row.status not in ENDED:
            await self._store.cancel(row.run_id)
            self._durable.stop(row.run_id)

    async def _ended(self, row: RunRow) -> RunRow:
        """The row when the run has ended; as it is where something in it does not let go."""
        news = asyncio.Event()
        leave = self._durable.listen(row.run_id, news)
        try:
            async with asyncio.timeout(self._patience):
                while row.status not in ENDED:
                    news.clear()
                    row = await self._durable.store.get(row.run_id) or row
                    if row.status not in ENDED:
                        await _soon(news, _LOOK)
        except TimeoutError:
            pass
        finally:
            leave()
        return row

    # -- people --------------------------------------------------------------------------------------------

    async def approvals(self, viewer: Viewer, limit: int = 100) -> list[JsonObject]:
        """What waits for a person, the oldest first."""
        store = await self._durable.reach()
        rows = await store.waiting(*viewer, limit) if store is not None else ()
        return [_question(row) for row in rows]

    async def resume(self, run_id: str, viewer: Viewer, by: CallerContext, said: Said) -> JsonObject:
        """Decides for a run that waits.

        Args:
            by: who decides; the name is recorded. A run of their own goes on with their token.

        Raises:
            NotWaiting: it does not wait. NotDurable: it never will.
            Forbidden, InvalidInput: it waits for the token of its caller, and this is another one, or none.
            InvalidInput: the decision does not fit the question, which stays open.
        """
        row = await self._row(run_id, viewer)
        if row is None:
            await self.get(run_id, viewer)
            raise NotDurable(f"The run {run_id!r} is not durable: it never waits for a person.")
        decision = {key: value for key, value in said._asdict().items() if value is not None}
        return await self._told(await self._durable.decide(row, decision, by))

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _store(self) -> RunStore | None:
        return self._durable.store if self._durable.is_open else None

    async def _now(self, row: RunRow) -> RunRow:
        """A row as it is shown: a nested run goes on, waits and is queued with the run at the top."""
        if not row.nested or row.status in ENDED or self._store is None:
            return row
        top = await self._store.get(row.worker)
        return replace(row, status=top.status if top is not None else "cancelled")

    async def _told(self, row: RunRow) -> JsonObject:
        """A durable run by itself: with what people decided in it."""
        if not row.durable:  # nested in one, which has them
            return line_of(row)
        # before its second segment nobody can have decided
        steps = await self._durable.store.steps(row.run_id) if row.segment > 1 else ()
        return {**line_of(row), "decisions": decided(steps)}

    async def _row(self, run_id: str, viewer: Viewer, *, nested: bool = False) -> RunRow | None:
        """The row of a durable run; None where it is none of those, or there is no store.

        Args:
            nested: whether a run nested in one is meant, too.
        """
        if "\0" in run_id:  # one database refuses to look for it, another one finds nothing
            raise RunNotFound(f"There is no run {run_id!r}.")
        store = await self._durable.reach()
        if store is None:
            return None
        row = await store.get(run_id)
        if row is None or not (row.durable or (nested and row.nested)):
            return None
        if not _visible(row, viewer):
            raise RunNotFound(f"There is no run {run_id!r}.")
        return row

    async def _noted(self, run_id: str, viewer: Viewer) -> RunRow | None:
        noted = await self._store.get(run_id) if self._store else None
        return noted if noted is not None and _visible(noted, viewer) else None

    async def list(self, viewer: Viewer, wanted: RunFilter) -> tuple[list[JsonObject], Usage]:
        await self._notes.flush()
        store = self._store
        if store is None:
            return await self._registry.list(viewer, wanted)
        agent, session, status, limit = wanted
        found, used = await self._registry.list(viewer, wanted, running=True)
        rows, more = await store.list(Wanted(*viewer, agent, session, status, limit))
        here = {line["run_id"] for line in found}  # one that its caller has named has a row from its start
        found += [line_of(await self._now(row)) for row in rows if row.run_id not in here]
        found.sort(key=lambda line: str(line["created_at"]), reverse=True)
        return found[: wanted.limit], used + more


class _Follower:
    """One listener to one run on disk, wherever it is worked on."""

    def __init__(
        self, store: RunStore, durable: DurableRuns, run_id: str, after: int, sink: EventSink
    ) -> None:
        self._store, self._durable, self._run_id = store, durable, run_id
        self._after, self._sink = after, sink
        self._last = ""

    def start(self) -> Callable[[], None]:
        task = asyncio.create_task(self._follow())
        return task.cancel  # type: ignore[return-value]

    async def read(self) -> bool:
        """Sends what is there; whether the run's last event was."""
        while page := await self._store.events(self._run_id, self._after, _PAGE):
            for event in page:
                self._sink.send(event)
            self._after, self._last = page[-1].seq, page[-1].type
        return self._last in TERMINAL

    async def _follow(self) -> None:
        news = asyncio.Event()
        leave = self._durable.listen(self._run_id, news)
        try:
            while True:
                news.clear()
                try:
                    if await self.read():
                        return
                except StoreError:
                    pass  # it may be there again
                await _soon(news, _LOOK_WAITING if self._last == "run.waiting" else _LOOK)
        finally:
            leave()


def _visible(row: RunRow, viewer: Viewer) -> bool:
    return row.tenant == viewer.tenant and viewer.owner in (None, row.owner)


def _question(row: RunRow) -> JsonObject:
    """`asking_agent`: whose call or node it is; the run's own, or one nested in it."""
    asked = row.waiting_for or {}
    asking = asked.get("asking_agent") or row.agent
    return {**asked, "agent": row.agent, "session_id": row.session_id, "asking_agent": asking}


async def _soon(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass


def line_of(row: RunRow) -> JsonObject:
    """A row as api.md section 1 shows a run."""
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "session_id": row.session_id,
        "status": row.status,
        "created_at": iso(row.created_at),
        "finished_at": iso(row.finished_at) if row.finished_at else None,
        "result": row.result,
        "error": row.error and {key: row.error[key] for key in ("code", "detail")},
        "usage": row.usage.to_json(),
        "attempts": list(row.attempts),
        "waiting_for": row.waiting_for,
    }
