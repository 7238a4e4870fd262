"""The recording of a plain run: the steps of a durable run, in memory until the run has ended.

Nothing is answered from it, and no process continues the run. Its rows are written with the row of the run,
by `astromesh.durable.run_archive`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from msgspec import Struct

from astromesh.durable.base import NO_CONTENTS, JournalStep
from astromesh.durable.waits import UncountedWaits
from astromesh.errors import ToolFailed
from astromesh.tools.base import HumanQuestion
from astromesh.types import JsonObject


class Recording(Struct, frozen=True):
    """A plain run that has ended, as it is stored beside its row.

    Args:
        steps: empty if they were too long.
        request, manifest, caller: as in a `RunRow`; the request has `accepted_at`.
        attachments: contents that the request refers to, by hash.
    """

    steps: Sequence[JournalStep]
    request: JsonObject
    manifest: JsonObject
    caller: JsonObject
    attachments: Mapping[str, bytes] = NO_CONTENTS


class MemorySteps:
    """The steps of a run in memory: a `StepWriter`.

    Args:
        max_bytes: of all steps; beyond it none are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._steps: dict[tuple[str, int], JournalStep] = {}
        self._room = max_bytes

    @property
    def steps(self) -> tuple[JournalStep, ...]:
        return tuple(self._steps.values()) if self._room >= 0 else ()

    def step(self, step: JournalStep) -> None:
        if step.state != "done" or self._room < 0:
            return
        known = (step.path, step.n) in self._steps  # it is redacted at the end
        self._room -= 0 if known else _size(step)
        if self._room < 0:
            self._steps.clear()
        else:
            self._steps[step.path, step.n] = step

    async def flush(self) -> None:
        """Has nothing to write."""


def _size(step: JournalStep) -> int:
    return len(orjson.dumps([step.output, step.about], option=orjson.OPT_NON_STR_KEYS))


class NoWaits(UncountedWaits):
    """Asks nobody: a plain run does not wait."""

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        """Raises: ToolFailed: always."""
        raise ToolFailed(
            f"A person must approve a call of {human_question.name!r}, and this run cannot wait for one: "
            "give the graph (its engine) or the agent a `store`, or start a durable run."
        )
