"""The journal of a Task: the calls of its stages, as records of the Task.

It is the journal of agent runs (`durable.journal`) over the log of a Task. A stage that was interrupted runs
again; its finished calls, and those of the runs of agents in it, are answered from the record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from astromesh.durable.approvals import UncountedWaits
from astromesh.durable.base import JournalStep
from astromesh.durable.fork import is_effect
from astromesh.durable.journal import RunJournal
from astromesh.durable.replay import ReplayLog
from astromesh.durable.step_log import NODE_PREFIX, StepLog
from astromesh.durable.steps import NESTED
from astromesh.errors import AstromeshError
from astromesh.tools.base import HumanQuestion
from astromesh.types import CompletionRequest, CompletionResult, JsonObject
from astromesh.workflow.base import STEP, RecordWriter
from astromesh.workflow.journal import current_calls


def open_task_journal(
    task_id: str,
    records: Sequence[Mapping[str, Any]],
    writer: RecordWriter,
    *,
    is_fork: bool = False,
    is_durable: bool = True,
    accepted_at: float = 0.0,
) -> RunJournal:
    """Returns the journal of a Task.

    Args:
        records: the steps in its records.
        is_durable: False for a Task that a caller waits for: it records the runs of agents, and no process
            continues it.
        accepted_at: the time that prompts show, so that a run that continues, or is forked, makes the same.
    """
    log = StepLog(
        task_id,
        "",
        _TaskWriter(writer),
        _StageWaits(),
        map(_step_of, records),
        inherited=0 if is_fork else None,
        is_durable=is_durable,
        accepted_at=accepted_at,
    )
    return RunJournal(log, "", task_id, _NoReplays())


def _step_of(record: Mapping[str, Any]) -> JournalStep:
    fields = JournalStep._fields  # a record of an earlier version has fewer
    return JournalStep(**{key: record[key] for key in fields if key in record})


def steps_of_runs(records: Iterable[Mapping[str, Any]]) -> dict[str, list[JournalStep]]:
    """Returns the steps of the runs of agents in the order of their numbers, by the path of the stage."""
    latest = {(step.path, step.n): step for _, step in numbered_steps_of_runs(records)}
    found: dict[str, list[JournalStep]] = {}
    for step in sorted(latest.values(), key=lambda one: one.ordinal):
        found.setdefault(step.path.removeprefix(NODE_PREFIX).partition(NESTED)[0], []).append(step)
    return found


def numbered_steps_of_runs(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, JournalStep]]:
    """Yields the steps of the runs of agents as they were written, with the numbers of their records."""
    for n, record in enumerate(records, 1):
        if record["type"] == STEP and NESTED in record["path"]:
            yield n, _step_of(record)


class ReplayedRuns:
    """The runs of agents in a Task that is replayed: each is made again, and compared with its steps.

    Args:
        records: of the Task.
        lists_tools: as of `ReplayLog`.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]], *, lists_tools: bool) -> None:
        begin, inherited = records[0], 0 if "forked_from" in records[0] else None
        self._runs = steps_of_runs(records)
        effects = filter(is_effect, (_step_of(one) for one in records if one["type"] == STEP))
        steps = [*effects, *(step for steps in self._runs.values() for step in steps)]
        steps.sort(key=lambda step: (step.path, step.n))
        at = begin.get("at", 0.0)
        self.log = ReplayLog(begin["task_id"], "", None, steps, at, inherited, lists_tools=lists_tools)

    def open_journal(self, task_id: str, *_: Any, **__: Any) -> RunJournal:
        """Returns the journal that answers these runs. See `OpenJournal`."""
        return RunJournal(self.log, "", task_id, _NoReplays())

    async def check(
        self, place: str, recorded: Mapping[str, Any], make: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> JsonObject | None:
        """Makes a run again and returns its divergence; None if it has no steps here. See `RunCheck`."""
        if place not in self._runs:
            return None
        try:
            made = await make()
        except AstromeshError:
            if self.log.divergence is None:
                raise
        else:
            self.log.check_answer({"response": recorded["response"]}, {"response": made["response"]})
        return self.log.divergence


class _TaskWriter:
    """Writes steps as records of a Task."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def step(self, step: JournalStep) -> None:
        self._writer.commit({"type": STEP, **step._asdict()})

    async def flush(self) -> None:
        await self._writer.flush()


class _StageWaits(UncountedWaits):
    """Asks people about the stage that the current code runs in."""

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        """Returns the decision, `expired` if nobody can be asked."""
        calls = current_calls()
        if calls is None or calls.ask is None:
            return {"decision": "expired"}
        return await calls.ask(f"{step.path}#{step.n}", human_question)


class _NoReplays:
    """A Task itself calls no model."""

    keeps_requests = False

    def record_replay(self, request: CompletionRequest, result: CompletionResult) -> None:
        """Keeps nothing."""
