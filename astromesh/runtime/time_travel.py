"""Recorded runs: their steps, what each one has read and written, and their forks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from astromesh.access.scopes import RUN, Viewer, permits
from astromesh.durable.base import ENDED_STATUSES, IdempotencyKey, JournalStep, RunRow
from astromesh.durable.comparison import ComparedRun, compare
from astromesh.durable.fork import Edit, check_edit, forked_steps, require_outputs
from astromesh.durable.run_worker import RunWorker
from astromesh.durable.steps import agent_at, as_shown, listed, step_content, steps_json, steps_of_nested
from astromesh.errors import ConfigError, Conflict, Forbidden, InvalidInput, NotRecorded, RunNotFound
from astromesh.plugins import Plugins
from astromesh.runtime.agent import Agent
from astromesh.runtime.agent_directory import AgentDirectory
from astromesh.runtime.forks import ForkRequest, copy_history, forked_row, history_of, with_model
from astromesh.runtime.input_rules import screen
from astromesh.runtime.records import attachments_of, new_request_to_json, request_of
from astromesh.runtime.replays import Replays
from astromesh.runtime.runs import Runs
from astromesh.runtime.segment import admission_of, stored_request
from astromesh.telemetry.clock import Clock
from astromesh.types import CallerContext, JsonObject


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
        if not permits(caller.scopes, RUN, row.agent):
            raise Forbidden(f"This request needs the scope '{RUN}:{row.agent}'.")
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
