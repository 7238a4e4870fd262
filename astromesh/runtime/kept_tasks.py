"""Tasks of this process and those that are kept on disk, as their viewers see them and may act on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from astromesh.abc.events import EventSink
from astromesh.abc.tasks import TASK_ENDED, Artifact, Found, TaskRow, TaskStore
from astromesh.errors import Conflict, NotDurable, NotWaiting, TaskNotFound
from astromesh.runtime.loaded_workflows import LoadedWorkflows
from astromesh.runtime.registry import Viewer
from astromesh.runtime.task_events import TaskFollower
from astromesh.runtime.task_log import LiveTask
from astromesh.types import JsonObject
from astromesh.workflow.cassette import Cassette
from astromesh.workflow.inspector import Inspector
from astromesh.workflow.retold import Retold

#: seconds between two looks at a Task that another process works on, and that a cancel waits for its end
_LOOK, _PATIENCE = 0.25, 10.0


class KeptTasks:
    """What can be asked of Tasks.

    Args:
        live: those that this process works on.
        store: opens the store, or answers the open one.
        stop: begins to end a Task of this process.
    """

    def __init__(
        self,
        workflows: LoadedWorkflows,
        live: Mapping[str, LiveTask],
        store: Callable[[], Awaitable[TaskStore]],
        stop: Callable[[str], bool],
    ) -> None:
        self._workflows, self._live, self._store, self._stop = workflows, live, store, stop

    def in_progress(self) -> Mapping[tuple[str, ...], float]:
        """Tasks that wait for their turn and Tasks that run, by workflow and state."""
        found: dict[tuple[str, ...], float] = {}
        for live in self._live.values():
            workflow = self._workflows.get(live.row.workflow)
            if workflow.engine is not None and "task_concurrency" in workflow.metrics:
                state = "running" if workflow.engine.is_running(live.id) else "queued"
                found[live.row.workflow, state] = found.get((live.row.workflow, state), 0.0) + 1
        return found

    async def task(self, task_id: str, viewer: Viewer) -> TaskRow:
        """Raises: TaskNotFound: there is none, or not for this caller."""
        live = self._live.get(task_id)
        row = (
            live.row
            if live is not None and not live.row.durable
            else await (await self._store()).get(task_id)
        )
        if row is None or row.tenant != viewer.tenant or viewer.owner not in (None, row.owner):
            raise TaskNotFound(f"There is no Task {task_id!r}.")
        return row

    async def state(self, task_id: str, viewer: Viewer) -> JsonObject:
        """A Task as callers see it, with the stages that wait for the inspector."""
        row = await self.task(task_id, viewer)
        waiting = self._workflows.waiting(row)
        live = self._live.get(task_id)
        running = live is not None and live.begun and row.status == "queued"
        return {**answer_of(row), "status": "running" if running else row.status, "paused": waiting}

    async def list(
        self, viewer: Viewer, workflow: str = "", status: str = "", limit: int = 50
    ) -> list[JsonObject]:
        """Tasks that are kept, the newest first."""
        rows = await (await self._store()).list(*viewer, workflow, status, limit)
        return [answer_of(row) for row in rows]

    async def trace(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Every entry by `seq`, every descendant, from the records so far."""
        row = await self.task(task_id, viewer)
        retold = self.retold(row)
        retold.tell(await self.records(row))
        return {**answer_of(row), "tasks": retold.tasks, "trace": retold.trace}

    async def artifacts(self, task_id: str, viewer: Viewer, found: Found) -> tuple[Artifact, ...]:
        await self.task(task_id, viewer)
        return await (await self._store()).artifacts(*viewer, found._replace(task_id=task_id))

    async def follow(self, task_id: str, viewer: Viewer, after: int, sink: EventSink, end: Any) -> Any:
        """Events behind `after`, then what comes. Answers what ends the following.

        Args:
            end: called behind the last event.
        """
        row = await self.task(task_id, viewer)

        async def source(seen: int) -> tuple[Sequence[JsonObject], asyncio.Event | None]:
            live = self._live.get(task_id)
            if live is not None:
                return live.records[seen:], live.news
            return await (await self._store()).records(task_id, seen), None

        return TaskFollower(source, self.retold(row), after, sink, end).start()

    async def cassette(self, task_id: str, viewer: Viewer) -> Cassette:
        """A Task that has ended, as a cassette."""
        row = await self.task(task_id, viewer)
        if row.status not in TASK_ENDED:
            raise Conflict(f"The Task {task_id!r} has not ended; it can be replayed when it has.")
        plan = self._plan(row)
        return Cassette.of(plan, await self.records(row), row.status, row.fingerprint)

    async def records(self, row: TaskRow) -> Sequence[JsonObject]:
        live = self._live.get(row.task_id)
        return tuple(live.records) if live else await (await self._store()).records(row.task_id)

    def _plan(self, row: TaskRow) -> Any:
        engine = self._workflows.ready(row.workflow)
        if engine.project.fingerprint.value != row.fingerprint:
            raise Conflict(f"The workflow {row.workflow!r} has changed since the Task {row.task_id!r} ran.")
        return engine.project.plan(row.start)

    def retold(self, row: TaskRow) -> Retold:
        return Retold(self._plan(row), row.task_id)

    # -- acting on them -------------------------------------------------------------------------------------

    async def cancel(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Ends a Task and all below it with status failure, reason cancelled; one that has ended stays so."""
        row = await self.task(task_id, viewer)
        if row.status not in TASK_ENDED:
            if row.durable:
                await (await self._store()).cancel(task_id)
            live = self._live.get(task_id)
            self._stop(task_id)
            await self._ended(task_id, live)
        return await self.state(task_id, viewer)

    async def ended(self, task_id: str, viewer: Viewer) -> JsonObject:
        """A Task when it has ended; waits for it."""
        row = await self.task(task_id, viewer)
        if row.status not in TASK_ENDED:
            await self._ended(task_id, self._live.get(task_id), None)
        return await self.state(task_id, viewer)

    async def _ended(self, task_id: str, live: LiveTask | None, patience: float | None = _PATIENCE) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while live is not None and self._live.get(task_id) is live:
                    await live.news.wait()
                while live is None:
                    row = await (await self._store()).get(task_id)
                    if row is None or row.status in TASK_ENDED:
                        return
                    await asyncio.sleep(_LOOK)

    async def pause(self, task_id: str, viewer: Viewer, before: Iterable[str] = ()) -> JsonObject:
        inspector = await self._inspected(task_id, viewer)
        inspector.pause(task_id, before)
        return await self.state(task_id, viewer)

    async def step(self, task_id: str, viewer: Viewer) -> JsonObject:
        """Raises: NotWaiting: no stage of the Task waits."""
        if not (await self._inspected(task_id, viewer)).step(task_id):
            raise NotWaiting(f"No stage of the Task {task_id!r} waits; pause it first.")
        return await self.state(task_id, viewer)

    async def resume(self, task_id: str, viewer: Viewer) -> JsonObject:
        if not (await self._inspected(task_id, viewer)).resume(task_id):
            raise NotWaiting(f"The Task {task_id!r} is not paused.")
        return await self.state(task_id, viewer)

    async def _inspected(self, task_id: str, viewer: Viewer) -> Inspector:
        row = await self.task(task_id, viewer)
        if task_id not in self._live:
            if row.status in TASK_ENDED:
                raise Conflict(f"The Task {task_id!r} has ended.")
            raise NotDurable(f"The Task {task_id!r} is worked on by another process; ask that one.")
        return self._workflows.get(row.workflow).inspector


def answer_of(row: TaskRow) -> JsonObject:
    """A Task in the form of api.md section 1."""
    result = row.result or {}
    stamp = {"run_fingerprint": row.fingerprint, "trace_id": row.trace_id}
    return {
        "task_id": row.task_id,
        "workflow": row.workflow,
        "status": row.status,
        "output": result.get("output"),
        "error": result.get("error"),
        "metadata": {**stamp, **result.get("metadata", {})},
        "durable": row.durable,
        "created_at": row.created_at,
        "finished_at": row.finished_at or None,
    }
