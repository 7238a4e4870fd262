"""Schedules: runs and Tasks that begin at the times of a cron expression.

Any process takes a schedule that is due, accepts its run or Task with an idempotency key of the schedule and
the instant, and moves the schedule to its next instant. If it dies in between, another one does the same, and
the key answers with the same run. So each firing happens once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from astromesh.access.scopes import Viewer, principal_of
from astromesh.config.schedules import AgentSchedule, Cron, WorkflowSchedule
from astromesh.durable.base import IdempotencyKey, RunStore, Schedule, ScheduleQuery
from astromesh.durable.leases import DAY_SECONDS, PeriodicJob
from astromesh.durable.serialization import caller_of, caller_to_json
from astromesh.errors import (
    AstromeshError,
    Conflict,
    InvalidInput,
    NotFound,
    ScheduleNotFound,
    StoreError,
    Unavailable,
)
from astromesh.logs import get_logger
from astromesh.runtime.records import RunRequest, TaskRequest
from astromesh.runtime.runner import AgentRunner
from astromesh.telemetry import ids
from astromesh.telemetry.clock import iso_time
from astromesh.types import CallerContext, JsonObject

if TYPE_CHECKING:  # by name alone: it is loaded with the first workflow
    from astromesh.runtime.tasks import WorkflowTasks

#: schedules that one principal may make
MAX_SCHEDULES = 1000
#: seconds between two looks at most, and while there is no store
_POLL_SECONDS, _IDLE_SECONDS = 5.0, 30.0
#: seconds after which another process fires what one that died had taken, and until a firing is tried again
_TAKEN_SECONDS, _RETRY_SECONDS = 30.0, 30.0
#: seconds that a firing may be late and is not missed
_LATE_SECONDS = 60.0
#: schedules that one process fires at the same time
_TOGETHER = 16
#: days that the key of a firing is stored until the schedule has moved on
_KEY_DAYS = 366

log = get_logger("astromesh.schedules")


class Schedules:
    """The schedules of one runtime.

    Args:
        workflows: Returns the workflows, or None where there are none.
    """

    def __init__(self, runner: AgentRunner, workflows: Callable[[], WorkflowTasks | None]) -> None:
        self._runner, self._workflows, self._clock = runner, workflows, runner.clock
        self._reads_files = True
        self._job = PeriodicJob(
            self._fire_due,
            _POLL_SECONDS,
            lambda error: log.warning("schedules_not_fired", error=str(error)),
            sleep=self._clock.sleep,
            at_once=True,
        )
        runner.durable.wakers["schedules"] = self._job.wake
        #: the time at which the backend of durable runs wakes a process for the next schedule
        self._wakes_at = 0.0

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes over the schedules of the files, then fires whatever is due."""
        self._job.start()

    def read_again(self) -> None:
        """Takes over the schedules of the files again, after they have changed."""
        self._reads_files = True
        self._job.wake()

    async def close(self) -> None:
        """Fires nothing more. What is being fired is fired by another process."""
        await self._job.close()

    async def _replace_files(self) -> None:
        """Stores the schedules of agents and workflows, and ends those that their files have no more."""
        if not self._reads_files:
            return
        found = self._of_files()
        store = await (self._runner.durable.open() if found else self._runner.durable.open_if_used())
        if store is not None:
            await store.replace_file_schedules(found, self._with_faults())
            self._reads_files = False

    def _of_files(self) -> list[Schedule]:
        configuration = self._runner.directory.state.configuration
        found = [
            self._from_file("agent", name, one)
            for name, agent in configuration.agents.items()
            for one in agent.spec.schedules
        ]
        if (workflows := self._workflows()) is not None:
            found += [self._from_file("workflow", name, one) for name, one in workflows.loaded.schedules()]
        return found

    def _with_faults(self) -> Collection[str]:
        """Returns what has faults now; its schedules stay as they are."""
        state, workflows = self._runner.directory.state, self._workflows()
        broken = {f"agent {name}" for name in state.broken}
        return (
            broken
            if workflows is None
            else broken | {f"workflow {name}" for name in workflows.loaded.broken()}
        )

    def _from_file(self, kind: str, target: str, times: AgentSchedule | WorkflowSchedule) -> Schedule:
        about = times.model_dump(exclude={"jitter", "on_missed"})
        text = orjson.dumps([kind, target, about], option=orjson.OPT_SORT_KEYS)
        made = self._new(kind, target, times, CallerContext())
        return self._timed(made._replace(id=f"sch_{sha256(text).hexdigest()[:24]}", from_file=1))

    def _new(
        self, kind: str, target: str, times: AgentSchedule | WorkflowSchedule, caller: CallerContext
    ) -> Schedule:
        request = (
            {"query": times.query, "session": times.session}
            if isinstance(times, AgentSchedule)
            else {"input": times.input}
        )
        now = self._clock.now()
        made = Schedule(
            ids.new_id("sch_"), *principal_of(caller), _json(caller_to_json(caller)), kind, target,
            _json(request), times.cron, times.timezone, times.jitter, times.on_missed, 0, 0, now,
            Cron(times.cron, times.timezone).after(now), 0.0,
        )  # fmt: skip
        return self._timed(made)

    # -- for callers ---------------------------------------------------------------------------------------

    async def create(
        self, kind: str, target: str, times: AgentSchedule | WorkflowSchedule, caller: CallerContext
    ) -> Schedule:
        """Stores a schedule of a caller, who its runs act as, without a token.

        The input rules of the agent check the query first, so that what they remove never reaches the disk.

        Raises:
            AgentNotFoundError, WorkflowNotFound: there is no such target.
            GuardrailBlocked: an input rule of the agent refuses the query.
            Conflict: the caller has too many.
        """
        self._require_target(kind, target)
        if isinstance(times, AgentSchedule):
            rules = self._runner.directory.get(target).guardrails
            times = times.model_copy(update={"query": rules.check_input(times.query).text})
        made = self._new(kind, target, times, caller)
        store = await self._runner.durable.open()
        if not await store.add_schedule(made, MAX_SCHEDULES):
            raise Conflict(f"You have {MAX_SCHEDULES} schedules. Delete one first.")
        self._job.wake()
        return made

    def _require_target(self, kind: str, target: str) -> None:
        if kind == "agent":
            self._runner.directory.get(target)
        elif (workflows := self._workflows()) is None:
            raise InvalidInput("workflow: this server has no workflows.", param="workflow")
        else:
            workflows.loaded.require_engine(target)

    async def list(self, filter: ScheduleQuery) -> tuple[Schedule, ...]:
        store = await self._runner.durable.open_if_used()
        return () if store is None else await store.schedules(filter)

    async def get(self, id: str, viewer: Viewer) -> Schedule:
        """Raises: ScheduleNotFound."""
        store = await self._runner.durable.open_if_used()
        found = None if store is None else await store.schedule(id, *viewer)
        if found is None:
            raise ScheduleNotFound(f"There is no schedule {id!r}. GET /v1/schedules lists them.")
        return found

    async def pause(self, id: str, viewer: Viewer, paused: bool) -> Schedule:
        """Pauses a schedule, or lets it go on. What would have begun meanwhile is not missed."""
        found = await self.get(id, viewer)
        if bool(found.paused) != paused:
            instant = Cron(found.cron, found.timezone).after(self._clock.now())
            found = self._timed(found._replace(paused=int(paused), instant=instant))
            await (await self._runner.durable.open()).pause_schedule(id, paused, found.instant, found.due_at)
            self._job.wake()
        return found

    async def delete(self, id: str, viewer: Viewer) -> None:
        """Raises: Conflict: a file has it."""
        found = await self.get(id, viewer)
        if found.from_file:
            raise Conflict(
                f"A file of the {found.kind} {found.target!r} has this schedule. Remove it there or pause it."
            )
        await (await self._runner.durable.open()).delete_schedule(id)

    async def run_now(self, found: Schedule, caller: CallerContext) -> str:
        """Begins a run or Task as the caller, beside the times of the schedule. Returns its id."""
        return await self._begin(found, self._clock.now(), caller, None)

    # -- firing --------------------------------------------------------------------------------------------

    async def _fire_due(self) -> None:
        self._job.seconds = _IDLE_SECONDS
        await self._replace_files()
        if (store := await self._runner.durable.open_if_used()) is None:
            return
        self._job.seconds = _POLL_SECONDS
        while (due_at := await store.next_schedule()) is not None:
            if (wait := due_at - (now := self._clock.now())) > 0.0:
                if due_at != self._wakes_at and await self._runner.durable.wake_at("schedules", due_at):
                    self._wakes_at = due_at
                pause = _IDLE_SECONDS if due_at == self._wakes_at else _POLL_SECONDS
                self._job.seconds = min(wait, pause)
                return
            schedules = await store.take_schedules(now, now + _TAKEN_SECONDS, _TOGETHER)
            await asyncio.gather(*(self._fire(store, one) for one in schedules))

    async def _fire(self, store: RunStore, one: Schedule) -> None:
        now = self._clock.now()
        instant, begins = self._firing(one, now)
        following = self._timed(one._replace(instant=Cron(one.cron, one.timezone).after(instant)))
        if begins:
            who = (one.tenant, one.owner, f"schedule {one.id}")
            key = IdempotencyKey(*who, iso_time(instant), "", now + _KEY_DAYS * DAY_SECONDS)
            try:
                run = await self._begin(one, instant, caller_of(orjson.loads(one.caller)), key)
                following = following._replace(last_at=instant, last_id=run, error="")
                log.info("schedule_fired", schedule=one.id, target=one.target, id=run)
            except (
                NotFound,
                Unavailable,
                StoreError,
            ) as error:  # it may come, or be elsewhere
                log.warning("schedule_not_fired", schedule=one.id, target=one.target, error=str(error))
                await store.postpone_schedule(one.id, one.instant, now + _RETRY_SECONDS, str(error))
                return
            except AstromeshError as error:
                log.warning("schedule_not_fired", schedule=one.id, target=one.target, error=str(error))
                following = following._replace(error=str(error))
        await store.settle_schedule(following, one.instant, now + DAY_SECONDS)

    def _firing(self, one: Schedule, now: float) -> tuple[float, bool]:
        """Returns the instant that a due schedule fires for, and whether anything begins."""
        if one.on_missed == "all":
            return one.instant, True
        cron = Cron(one.cron, one.timezone)
        instant = cron.last(one.instant, now)
        if (
            instant > one.instant and self._due_at(one._replace(instant=instant)) > now
        ):  # its jitter is to come
            instant = cron.last(one.instant, instant - 1.0)
        late = now - self._due_at(one._replace(instant=instant))
        return instant, one.on_missed == "once" or late <= _LATE_SECONDS

    async def _begin(
        self, one: Schedule, instant: float, caller: CallerContext, key: IdempotencyKey | None
    ) -> str:
        """Accepts a run or a Task. Returns its id."""
        request: Mapping[str, Any] = orjson.loads(one.request)
        about = {"schedule": one.id, "scheduled_at": iso_time(instant)}
        if one.kind == "agent":
            session = request["session"] or f"{one.id}/{iso_time(instant)}"
            run = RunRequest(request["query"], session, metadata=about)
            agent = self._runner.directory.get(one.target)
            return (await self._runner.accept(agent, run, caller=caller, key=key)).run_id
        self._require_target(one.kind, one.target)
        workflows = self._workflows()
        assert workflows is not None
        task = TaskRequest(request["input"], metadata=about)
        return (await workflows.accept(one.target, task, caller=caller, key=key)).task_id

    def _timed(self, one: Schedule) -> Schedule:
        return one._replace(due_at=self._due_at(one))

    def _due_at(self, one: Schedule) -> float:
        """Returns the instant of a schedule with its jitter, which is the same in every process."""
        digest = sha256(f"{one.id} {one.instant}".encode()).digest()
        return one.instant + one.jitter * int.from_bytes(digest[:6], "big") / 2**48


def schedule_json(one: Schedule) -> JsonObject:
    """Returns a schedule as `GET /v1/schedules` shows it."""
    return {
        "id": one.id,
        one.kind: one.target,
        "cron": one.cron,
        "timezone": one.timezone,
        **orjson.loads(one.request),
        "jitter": one.jitter,
        "on_missed": one.on_missed,
        "source": "file" if one.from_file else "api",
        "paused": bool(one.paused),
        "created_at": iso_time(one.created_at),
        "next_at": None if one.paused else iso_time(one.instant),
        "last_at": iso_time(one.last_at) if one.last_at else None,
        "last_run_id" if one.kind == "agent" else "last_task_id": one.last_id or None,
        "error": one.error or None,
    }


def _json(value: JsonObject) -> str:
    return orjson.dumps(value).decode()
