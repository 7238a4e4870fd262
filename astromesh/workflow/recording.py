"""The file of a recorded run, `*.cassette.json`: its input, its stages and their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from astromesh.errors import InvalidInput
from astromesh.types import JsonObject
from astromesh.workflow.history import History
from astromesh.workflow.journal import comparable_fields
from astromesh.workflow.memory import InMemoryLayer, LayerStore, item_from_json

RECORDING_VERSION = 1
_MAX_ITEMS = 1_000_000
#: keys of a recorded call that a replay does not need
_TIMES = frozenset({"started_at", "duration_ms"})


@dataclass(frozen=True, slots=True)
class Recording:
    """The input of a run and every response that came from outside of it.

    Args:
        stages: `{task, stage, status, code, edge, output_hash, output, calls, started_at}` in the order in
            which they counted, with `begun: false` where a stage failed before it began, `edited: true` where
            a fork has the output of a stage that did not run, and `edits` of its requests to models.
        memory: items of project and global memory that its stages received.
        task_id: that of the Task; empty in recordings of earlier versions.
    """

    workflow: str
    start: str
    input: Any
    status: str
    stages: tuple[JsonObject, ...] = field(repr=False)
    run_fingerprint: str = ""
    memory: tuple[JsonObject, ...] = field(default=(), repr=False)
    task_id: str = ""

    @property
    def path(self) -> list[str]:
        return [stage["stage"] for stage in self.stages]

    def memory_layers(self) -> dict[str, LayerStore]:
        """Returns private in-memory stores with the recorded items."""
        layers: dict[str, LayerStore] = {}
        for layer in ("task", "project", "global"):
            items = [item_from_json(one) for one in self.memory if one["layer"] == layer]
            layers[layer] = InMemoryLayer(_MAX_ITEMS, items)
        return layers

    def to_json(self) -> JsonObject:
        return {
            "version": RECORDING_VERSION, "workflow": self.workflow, "task_id": self.task_id,
            "start": self.start, "input": self.input, "status": self.status,
            "run_fingerprint": self.run_fingerprint, "memory": list(self.memory), "stages": list(self.stages),
        }  # fmt: skip

    @classmethod
    def from_records(
        cls, history: History, records: Sequence[Mapping[str, Any]], status: str, fingerprint: str = ""
    ) -> Recording:
        """Creates a recording from the records of a Task, which contain the calls of its stages.

        Args:
            history: empty.
        """
        begin = records[0]
        history.apply(records)
        stages = tuple(map(_stage_record, history.records))
        memory = _shared_memory_items(record.get("context") for record in history.records)
        return cls(
            begin["workflow"], begin["start"], begin["input"], status, stages, fingerprint, memory,
            begin["task_id"],
        )  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """Creates a recording from JSON.

        Raises:
            KeyError, TypeError: the data is not a recording.
            InvalidInput: it has another version.
        """
        if data["version"] != RECORDING_VERSION:
            raise InvalidInput(
                f"The recording has version {data['version']}, which this astromesh does not read. Record it "
                "again with 'astromesh workflow record'."
            )
        return cls(
            data["workflow"], data["start"], data["input"], data["status"], tuple(data["stages"]),
            data["run_fingerprint"], tuple(data["memory"]), data.get("task_id", ""),
        )  # fmt: skip

    @classmethod
    def read(cls, file: Path) -> Recording:
        """Reads a file.

        Raises:
            InvalidInput: the file does not exist or is not a recording.
        """
        try:
            return cls.from_json(orjson.loads(file.read_bytes()))
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise InvalidInput(f"{file} is not a recording: {error!r}.") from error

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _shared_memory_items(contexts: Iterable[JsonObject | None]) -> tuple[JsonObject, ...]:
    """Returns the items of project and global memory of these context packages, each once."""
    found: dict[tuple[str, str], JsonObject] = {}
    for context in contexts:
        for item in context["items"] if context else ():
            if item["layer"] != "task":
                found.setdefault((item["layer"], item["id"]), item)
    return tuple(found.values())


def _stage_record(record: Mapping[str, Any]) -> JsonObject:
    entry = record["entry"]
    calls = [{k: v for k, v in call.items() if k not in _TIMES} for call in record.get("calls", ())]
    found = {**comparable_fields(entry), "output": entry["output"], "calls": calls}
    found["started_at"] = record.get("began_at", entry["started_at"])
    found |= {key: record[key] for key in ("edited", "edits", "task_id") if record.get(key)}
    return found if record.get("begun", True) else {**found, "begun": False}
