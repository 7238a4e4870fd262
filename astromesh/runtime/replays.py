"""Replays: a recorded run is made again without a call, and compared with itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from astromesh.durable.base import JournalStep, RunRow
from astromesh.durable.budgets import Budgets
from astromesh.durable.journal import RunJournal
from astromesh.durable.replay import ReplayLog
from astromesh.durable.serialization import caller_of
from astromesh.errors import AstromeshError
from astromesh.graph.scope import Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.agent_directory import AgentDirectory
from astromesh.runtime.content_capture import redactor_of
from astromesh.runtime.pipeline import answer
from astromesh.runtime.records import RunAnswer, RunRequest, contents_by_hash
from astromesh.runtime.request_options import changed_agent
from astromesh.runtime.run import RunFactory
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tools.base import ToolContext
from astromesh.types import Event, JsonObject

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
