"""The history of a record: which nodes have finished, the record up to a step, and a step with an edit.

Steps that are done are numbered in the order in which they ended, so that whatever a step has used has a
smaller number. The same functions serve runs of agents and of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import convert

from astromesh.durable.base import JournalStep
from astromesh.errors import InvalidInput
from astromesh.graph.checkpoints import Checkpoint
from astromesh.types import JsonObject, Usage


def finished_nodes(steps: Iterable[JournalStep]) -> list[JournalStep]:
    """Returns the steps of finished nodes, in order."""
    found = [
        s for s in steps if s.kind == "node" and s.state == "done" and s.ordinal and s.output is not None
    ]
    return sorted(found, key=lambda step: step.ordinal)


def checkpoint_of(step: JournalStep) -> Checkpoint:
    """Returns a finished node as callers see it."""
    record = step.output or {}
    result, edge = record["result"], record.get("edge")
    return Checkpoint(
        step.ordinal,
        record["node"],
        edge[0] if edge else "",
        result.get("output"),
        result.get("error", ""),
        result.get("duration_ms", 0.0),
        convert(result["usage"], Usage) if "usage" in result else Usage(),
        step.started_at + step.duration_ms / 1000,
    )


def steps_until(steps: Sequence[JournalStep], number: int) -> list[JournalStep]:
    """Returns the record of a run as it was when a step was done. 0: an empty one.

    Raises:
        InvalidInput: There is no such step.
    """
    numbers = {step.ordinal for step in steps if step.ordinal}
    if number and number not in numbers:
        known = f"It has steps 1 to {max(numbers)}." if numbers else "It has none yet."
        raise InvalidInput(f"The run has no step {number}. {known}")
    return [step for step in steps if 0 < step.ordinal <= number]


def node_at(steps: Iterable[JournalStep], number: int) -> JournalStep | None:
    """Returns the newest node that had finished at a step. None: none had."""
    return next((step for step in reversed(finished_nodes(steps)) if step.ordinal <= number), None)


def edited(step: JournalStep, edit: JsonObject, edge: Sequence[str]) -> JournalStep:
    """Returns a finished node whose state is changed after it, and which leads on from there.

    Args:
        edit: Writes, in the form of `node_json.Snapshot.writes`.
        edge: The next node, and the rule that chose it.
    """
    return step._replace(output={**(step.output or {}), "edit": edit, "edge": list(edge)})
