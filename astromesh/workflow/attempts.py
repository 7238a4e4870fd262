"""How often each stage of a Task began, from its records.

    start    the stage begins; on disk before its operation or agent runs
    stop     the process ends in order, with stages under way
    death    the process of its own that a stage ran in has died

A stage that began and neither ended nor was stopped ran when its process died, so it may be what killed the
process: a suspect. Suspects run again in a worker process. The death of a server counts for no stage, because
it may have had any cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

#: types of records
START, STOP, DEATH = "start", "stop", "death"
#: path of the Task, id of the stage
_Key: TypeAlias = tuple[str, str]


class StageAttempts:
    """The attempts of the stages of one Task.

    Attributes:
        open: stages that began and did not end, as the records say.
    """

    def __init__(self) -> None:
        self._begun: Counter[_Key] = Counter()
        self._deaths: Counter[_Key] = Counter()
        self.open: set[_Key] = set()

    def apply(self, record: Mapping[str, Any]) -> None:
        """Applies a record of the Task log, in their order."""
        match record["type"]:
            case "start":
                key = record["task"], record["stage"]
                self._begun[key] += 1
                self.open.add(key)
            case "stage":
                self.open.discard((record["entry"]["task"], record["entry"]["stage_id"]))
            case "death":
                self._deaths[record["task"], record["stage"]] += 1
            case "stop":
                self.open.clear()

    def begun(self, task: str, stage: str) -> int:
        """Returns how often a stage has begun."""
        return self._begun[task, stage]

    def deaths(self, task: str, stage: str) -> int:
        """Returns how often the process of a stage's own has died."""
        return self._deaths[task, stage]
