"""The journal of a Task: the calls of its stages, as records of the Task.

It is the journal of agent runs (`durable.journal`) over the log of a Task. A stage that was interrupted runs
again; its finished calls, and those of the runs of agents in it, are answered from the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astromesh.durable.base import JournalStep
from astromesh.durable.journal import RunJournal
from astromesh.durable.step_log import StepLog
from astromesh.durable.waits import UncountedWaits
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
) -> RunJournal:
    """Returns the journal of a Task.

    Args:
        records: the steps in its records.
        is_durable: False for a Task that a caller waits for: it records the runs of agents, and no process
            continues it.
    """
    fields = JournalStep._fields  # a record of an earlier version has fewer
    steps = (JournalStep(**{key: record[key] for key in fields if key in record}) for record in records)
    log = StepLog(
        task_id,
        "",
        _TaskWriter(writer),
        _StageWaits(),
        steps,
        inherited=0 if is_fork else None,
        is_durable=is_durable,
    )
    return RunJournal(log, "", task_id, _NoReplays())


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
