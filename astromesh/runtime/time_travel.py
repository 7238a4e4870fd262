"""Recorded runs: their steps, what each one has read and written, their forks, and their replays.

A replay makes a run again without a call, and compares it with its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from astromesh.access.scopes import RUN, Viewer, principal_of, require_scope
from astromesh.durable.base import ENDED_STATUSES, IdempotencyKey, JournalStep, RunRow
from astromesh.durable.budgets import Budgets
from astromesh.durable.comparison import ComparedRun, compare
from astromesh.durable.fork import Edit, check_edit, forked_steps, require_outputs
from astromesh.durable.journal import RunJournal
from astromesh.durable.replay import ReplayLog
from astromesh.durable.run_worker import RunWorker
from astromesh.durable.serialization import PLACE, SCHEMA, caller_of, caller_to_json, memory_of
from astromesh.durable.step_view import agent_at, as_shown, listed, step_content, steps_json, steps_of_nested
from astromesh.errors import (
    AstromeshError,
    ConfigError,
    Conflict,
    InvalidInput,
    NotRecorded,
    RunNotFound,
)
from astromesh.graph.scope import Scope
from astromesh.plugins import Plugins
from astromesh.runtime.agent import Agent
from astromesh.runtime.agent_directory import AgentDirectory
from astromesh.runtime.config_loader import with_model
from astromesh.runtime.content_capture import redactor_of
from astromesh.runtime.pipeline import answer
from astromesh.runtime.records import (
    RunAnswer,
    RunRequest,
    attachments_of,
    contents_by_hash,
    new_request_to_json,
    request_of,
)
from astromesh.runtime.request_checks import changed_agent, screen
from astromesh.runtime.run import RunFactory
from astromesh.runtime.runs import Runs
from astromesh.runtime.segment import admission_of, stored_request
from astromesh.telemetry import ids
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tools.base import ToolContext
from astromesh.types import CallerContext, Event, JsonObject, SessionKey, Turn, Usage

#: `new`: a session of its own, with the history of the run. `same`: that of the run
ForkSession = Literal["new", "same"]


#: keys of a request that its forks do not have
_OF_ONE_RUN = ("persist", "traceparent", PLACE)


class ForkRequest(NamedTuple):
    """What a caller wants of a fork.

    Args:
        at: number of a step.
        session: the session that the turns are written to; None: none.
    """

    at: int
    edit: Edit | None = None
    session: ForkSession | None = None


def forked_row(
    row: RunRow,
    steps: Sequence[JournalStep],
    request: ForkRequest,
    manifest: JsonObject,
    caller: CallerContext,
    now: float,
) -> tuple[RunRow, CallerContext]:
    """Returns the row of a fork, and the caller that it runs for: the owner of the run.

    Args:
        steps: that the fork begins with.
    """
    own = principal_of(caller) == (row.tenant, row.owner)
    caller = caller if own else caller_of(row.caller)
    run_id, edit = ids.new_id("run_"), request.edit
    body = {key: value for key, value in row.request.items() if key not in _OF_ONE_RUN}
    if edit is not None and edit.kind == "query":
        body["query"] = edit.value
    if request.session is None:
        body["persist"] = False
    session_id = run_id if request.session == "new" else row.session_id
    accepted_at = (row.forked_from or row.request).get("accepted_at", row.created_at)
    inherited = max((step.ordinal for step in steps), default=0)
    forked_from = {"run_id": row.run_id, "step": request.at, "edit": edit.kind if edit else None}
    fork = replace(
        row, run_id=run_id, trace_id=ids.trace_id(), session_id=session_id, status="queued", created_at=now,
        parent="", durable=True, request={**body, "session_id": session_id, "journal": SCHEMA},
        manifest=manifest, caller=caller_to_json(caller), finished_at=0.0, deadline_at=0.0, wake_at=0.0,
        # the first segment of a run reads no record
        segment=2 if steps else 1, worker="", cancelling=False, result=None, error=None, deaths=0,
        usage=Usage(), attempts=(), waiting_for=None, ordered=request.session is not None,
        forked_from={**forked_from, "accepted_at": accepted_at, "inherited": inherited},
    )  # fmt: skip
    return fork, caller


def history_of(steps: Iterable[JournalStep]) -> list[JsonObject]:
    """Returns the conversation that a run has found in its session."""
    found = next((step.output for step in steps if step.path == "memory"), None)
    return list((found or {}).get("history", ()))


async def copy_history(agent: Agent, row: RunRow, steps: Iterable[JournalStep], now: float) -> None:
    """Writes the conversation that a run has found to the session of its fork."""
    messages = memory_of({"history": history_of(steps), "semantic": (), "episodic": (), "degraded": ()})
    history = [m for m in messages.conversation_history if m.role in ("user", "assistant") and m.content]
    if not history or agent.memory.is_empty:
        return
    key = SessionKey(row.tenant, row.agent, row.session_id, row.owner)
    async with agent.memory.transaction(key, row.owner) as transaction:
        for message in history:
            role: Literal["user", "assistant"] = "user" if message.role == "user" else "assistant"
            transaction.persist_turn(Turn(role, message.content, created_at=now, run_id="history"))


class TimeTravel:
    """The recorded runs of a runtime. Methods with a `run_id` raise what those of `Runs` raise."""

    def __init__(
        self,
        runs: Runs,
        durable: RunWorker,
        directory: AgentDirectory,
        replays: Replays,
        plugins: Plugins,
        clock: Clock,
    ) -> None:
        self._runs, self._durable, self._directory, self._replays = runs, durable, directory, replays
        self._plugins, self._clock = plugins, clock

    async def steps(self, run_id: str, viewer: Viewer) -> list[JsonObject]:
        """Returns the steps of a run in order.

        Raises:
            NotRecorded: the run has no record.
        """
        return steps_json(await self._shown_steps(run_id, viewer))

    async def step(self, run_id: str, step: int, viewer: Viewer) -> JsonObject:
        """Returns one step with its input and output.

        Raises:
            NotRecorded: the run has no record.
            RunNotFound: the run has no such step.
        """
        found = step_content(await self._shown_steps(run_id, viewer), step)
        if found is None:
            raise RunNotFound(f"The run {run_id!r} has no step {step}.")
        return found

    async def _shown_steps(self, run_id: str, viewer: Viewer) -> Sequence[JournalStep]:
        """Returns the steps of a run; those of a nested run have the numbers of the run above."""
        row = await self._runs.row(run_id, viewer)
        above = row.worker if row.nested else row.parent.partition(".")[0]
        if not above or _is_task(above) or await self._durable.store.steps(run_id):
            return (await self._shown(await self.recorded(run_id, viewer))).steps
        found = await self._shown(await self.recorded(above, viewer))
        return steps_of_nested(found.steps, found.row.run_id, run_id)

    async def _shown(self, found: ComparedRun) -> ComparedRun:
        """Returns a run with its steps as the output rules leave them, also before it has ended."""
        row, steps = found
        redactors = await self._directory.redactors(steps, row.agent, row.manifest)
        return ComparedRun(row, as_shown(steps, redactors))

    async def fork(
        self,
        run_id: str,
        viewer: Viewer,
        request: ForkRequest,
        caller: CallerContext,
        key: IdempotencyKey | None = None,
    ) -> RunRow:
        """Accepts a run that has the steps of another one before a step, and continues from there.

        Args:
            caller: who starts it. It runs for the owner of the run, with the caller's token if they are one.

        Raises:
            NotRecorded: the run has no record, or a step before this one or an attachment was deleted.
            InvalidInput: there is no such step, or it cannot be edited like that.
            Forbidden: the caller may not run the agent.
            StoreUnavailable, ShuttingDown, Overloaded: the fork was not accepted.
        """
        row, steps = await self.recorded(run_id, viewer)
        require_scope(caller.scopes, RUN, row.agent)
        at = next((step for step in listed(steps) if step.ordinal == request.at), None)
        if at is None:
            raise InvalidInput(f"at: the run {run_id!r} has no step {request.at}.")
        if request.edit is not None:
            check_edit(at, request.edit)
        await self._require_attachments(row)
        begun = forked_steps(steps, at, request.edit)
        manifest = self._manifest(row, at, request.edit)
        agent = await self._agent(row.agent, manifest, request.edit)
        now = self._clock.now()
        fork, caller = forked_row(row, begun, request, manifest, caller, now)
        if request.edit is not None and request.edit.kind == "query" and "history" not in fork.request:
            # its session may have grown since
            fork = replace(fork, request={**fork.request, "history": history_of(steps)})
        if not any(step.path == "input" for step in begun):  # it comes to the input rules
            checked = screen(agent.guardrails, request_of(fork.request))
            fork = replace(fork, request=new_request_to_json(checked))
        if request.session == "new":
            await copy_history(agent, fork, steps, now)
        admission = admission_of(agent)._replace(policy="enqueue", take_place=None)
        return await self._durable.accept(fork, caller, admission, key, begun)

    async def _require_attachments(self, row: RunRow) -> None:
        named = [one for one in attachments_of(request_of(row.request)) if one.sha256]
        stored = await self._durable.store.attachments(row.run_id) if named else {}
        missing = [repr(one.name or one.sha256) for one in named if one.sha256 not in stored]
        if missing:
            raise NotRecorded(
                f"Attachments of the run {row.run_id!r} were deleted with its session: {', '.join(missing)}. "
                "Start a new run with these files."
            )

    async def _agent(self, name: str, manifest: JsonObject, edit: Edit | None) -> Agent:
        try:
            return await self._directory.of_snapshot(name, manifest)
        except ConfigError as error:
            if edit is None or edit.kind != "model":
                raise
            raise InvalidInput(f"edit.model: {getattr(error, 'message', error)}") from error

    def _manifest(self, row: RunRow, at: JournalStep, edit: Edit | None) -> JsonObject:
        if edit is not None and edit.kind == "manifest":
            return self._directory.get(row.agent).snapshot
        manifest = row.manifest or {}
        if edit is not None and edit.kind == "model":
            return with_model(manifest, agent_at(at.path), edit.value, self._plugins.names("providers"))
        return manifest

    async def recorded(self, run_id: str, viewer: Viewer) -> ComparedRun:
        """Returns a run with its record."""
        row = await self._runs.row(run_id, viewer)
        if not row.durable:  # a row in memory has no request
            await self._runs.archive.flush()
            store = await self._durable.open()
            row = await store.get(run_id) or row
        steps = await self._durable.store.steps(run_id)
        if not listed(steps):
            raise _not_recorded(row)
        return ComparedRun(row, steps)

    async def compare(self, run_ids: Sequence[str], viewer: Viewer) -> JsonObject:
        """Returns two or three runs side by side; the others are compared with the first.

        Raises:
            NotRecorded: one of them has no record.
        """
        runs = [await self._shown(await self.recorded(run_id, viewer)) for run_id in run_ids]
        return await asyncio.to_thread(compare, dict(zip("abc", runs, strict=False)))

    async def replay(self, run_id: str, viewer: Viewer) -> JsonObject:
        """Makes a run again from its record, without a call, and compares it with what it was.

        Raises:
            NotRecorded: the run has no record, or a text of it is no longer stored.
            Conflict: the run has not ended.
        """
        row, steps = await self.recorded(run_id, viewer)
        if row.status not in ENDED_STATUSES:
            raise Conflict(f"The run {run_id!r} is {row.status}: it can be replayed when it has ended.")
        require_outputs(steps)
        await self._require_attachments(row)
        request = await stored_request(self._durable.store, row)
        return {"run_id": run_id, **await self._replays.replay(row, request, steps)}

    async def delete_recording(self, run_id: str, viewer: Viewer) -> None:
        """Deletes the steps of a run that has ended. The run and its answer stay.

        Raises:
            Conflict: the run has not ended.
        """
        row = await self._runs.row(run_id, viewer)
        if row.status not in ENDED_STATUSES:
            raise Conflict(f"The run {run_id!r} is {row.status}: its record is deleted after its end.")
        await self._runs.archive.flush()
        await (await self._durable.open()).delete_recording(run_id)


def _is_task(id: str) -> bool:
    return id.startswith("task_")


def _not_recorded(row: RunRow) -> NotRecorded:
    above = row.parent.partition(".")[0]
    if _is_task(above):
        return NotRecorded(
            f"The run {row.run_id!r} is part of a Task, which has its steps: GET /v1/tasks/{above}/steps."
        )
    if row.nested:
        return NotRecorded(f"The run {row.run_id!r} is part of {row.worker!r}, which has its steps.")
    if row.durable:
        return NotRecorded(
            f"The run {row.run_id!r} has no steps: it has not begun, or an earlier version of astromesh "
            "ran it."
        )
    return NotRecorded(
        f"The run {row.run_id!r} is not recorded, or its recording was too long or is deleted. "
        "`recording: true` in the agent's YAML, or `recording: {enabled: true}` in runtime.yaml, records "
        "plain runs. Durable runs are always recorded."
    )


#: seconds of one replay
_TIMEOUT = 60.0


class RecordedClock:
    """The clock of a replay: it shows the time of the run, and no pause takes time."""

    monotonic = staticmethod(SystemClock.monotonic)

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class _NoListener:
    """Counts nothing: a replay is no run."""

    wants_deltas = False

    def send(self, event: Event) -> None:
        """Receives and forgets."""


class Replays:
    """Replays the runs of a runtime."""

    def __init__(self, directory: AgentDirectory, budgets: Budgets) -> None:
        self._directory, self._budgets = directory, budgets

    async def replay(self, row: RunRow, request: RunRequest, steps: Sequence[JournalStep]) -> JsonObject:
        """Makes a run again. Returns `{"reproduced", "compared", "divergence"}`.

        Raises:
            AgentNotFoundError, InvalidManifest: its agent cannot be opened any more.
        """
        agent = await self._directory.of_snapshot(row.agent, row.manifest or {})
        accepted_at: float = (row.forked_from or row.request).get("accepted_at", row.created_at)
        inherited = None if row.forked_from is None else row.forked_from["inherited"]
        log = ReplayLog(
            row.run_id,
            row.agent,
            row.manifest,
            steps,
            accepted_at,
            inherited,
            lists_tools=not agent.tools.live,
        )
        request = replace(request, persist=False)
        agent = changed_agent(agent, request)
        run = self._factory(RecordedClock(accepted_at)).new_run(
            agent, request, caller_of(row.caller), trace_id=row.trace_id, run_id=row.run_id
        )
        run.journal = run.scope.journal = RunJournal(log, "", run.id, run.model, redactor_of(agent))
        run.journal.contents = contents_by_hash(request)
        try:
            async with asyncio.timeout(_TIMEOUT):
                made = _ending(await answer(agent, request, run))
        except AstromeshError as error:
            made = {"error": error.code}
        log.check_answer(_recorded_ending(row), made)
        found = log.divergence
        if found is not None and row.status != "completed" and found["at"] == "step":
            found = None  # the run has failed there, or was cancelled
        return {"reproduced": found is None, "compared": log.compared, "divergence": found}

    async def nested(self, agent: Agent, request: RunRequest, parent: ToolContext) -> RunAnswer:
        """Makes a run nested in a replayed one again."""
        outer: Scope = parent.run
        factory = self._factory(outer.clock)
        run = factory.new_run(agent, request, parent.caller, (), parent.trace_id, parent)
        return await answer(agent, request, run)

    def _factory(self, clock: Clock) -> RunFactory:
        return RunFactory(clock, _NoListener(), self._budgets)


def _ending(answer: RunAnswer) -> JsonObject:
    body = answer.to_json()
    return {key: body[key] for key in ("response", "output") if key in body}


def _recorded_ending(row: RunRow) -> JsonObject:
    if row.status == "completed":
        result = row.result or {}
        return {key: result[key] for key in ("response", "output") if key in result}
    return {"error": (row.error or {}).get("code")}
