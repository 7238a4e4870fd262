"""What a workflow asks of others: a log that makes its Tasks durable, a gate in front of stages, new ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from astromesh.types import JsonObject


class TaskLog(Protocol):
    """Keeps the records of runs, so that a killed run goes on with its interrupted stages only (E56).

    A record is a JSON object. The first is `{type: begin, task_id, workflow, start, input}`. Then follows a
    `{type: stage, entry}` for each stage (`Entry.to_json`: task path, stage, input, output, status, …) in the
    order in which they count, perhaps `{type: cancel, reason}`, and last `{type: end, status, …}`. All
    that follows from a record (routes, clones, merges, memory) is computed again from it.
    """

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        """Keeps records, in this order, in one commit. They count only when this returned."""


class Gate(Protocol):
    """Asked before each stage; a stage begins when it answers. For the inspector (E54)."""

    async def __call__(self, task: str, stage: str, input: Any, context: JsonObject | None) -> None: ...
