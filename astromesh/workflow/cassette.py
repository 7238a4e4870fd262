"""A recorded run that replays offline with the same path and output hashes, or says where not (E53)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from astromesh.abc.run import OWN_TERMS, Terms
from astromesh.abc.tool import ToolContext
from astromesh.errors import InvalidInput
from astromesh.types import JsonObject
from astromesh.workflow.agents import FolderAgent
from astromesh.workflow.faults import StageFault
from astromesh.workflow.layers import InMemoryLayer, LayerStore
from astromesh.workflow.plan import Plan
from astromesh.workflow.result import TaskResult
from astromesh.workflow.retold import Retold
from astromesh.workflow.scratch import item_of
from astromesh.workflow.stages import Kit
from astromesh.workflow.tape import Recorder, StageCalls, equip, error_of, path_of
from astromesh.workflow.values import digest

VERSION = 1
_MOST = 1_000_000
#: seconds that a replay waits for a stage that should come before another one
_STALLED = 30.0


@dataclass(frozen=True, slots=True)
class Cassette:
    """What a run was asked, and all that came from outside of it.

    Args:
        stages: `{task, stage, status, code, edge, output_hash, calls}` in the order that counted, with
            `begun: false` where one failed before it could begin.
        memory: items of project and global memory that its stages were given.
    """

    workflow: str
    start: str
    input: Any
    status: str
    stages: tuple[JsonObject, ...] = field(repr=False)
    run_fingerprint: str = ""
    memory: tuple[JsonObject, ...] = field(default=(), repr=False)

    @property
    def path(self) -> list[str]:
        return [stage["stage"] for stage in self.stages]

    def to_json(self) -> JsonObject:
        return {
            "version": VERSION, "workflow": self.workflow, "start": self.start, "input": self.input,
            "status": self.status, "run_fingerprint": self.run_fingerprint, "memory": list(self.memory),
            "stages": list(self.stages),
        }  # fmt: skip

    @classmethod
    def of(
        cls, plan: Plan, records: Sequence[Mapping[str, Any]], status: str, fingerprint: str = ""
    ) -> Cassette:
        """From the records of a Task, which hold the calls of its stages."""
        begin = records[0]
        retold = Retold(plan, begin["task_id"])
        retold.tell(records)
        stages = tuple(map(_stage, retold.records))
        memory = _outside(record.get("context") for record in retold.records)
        return cls(begin["workflow"], begin["start"], begin["input"], status, stages, fingerprint, memory)

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Cassette:
        """Raises: KeyError, TypeError: it is none. InvalidInput: it is of another version."""
        if data["version"] != VERSION:
            raise InvalidInput(
                f"This is a cassette of version {data['version']}; record it again with "
                "'astromesh workflow record'."
            )
        return cls(
            data["workflow"], data["start"], data["input"], data["status"], tuple(data["stages"]),
            data["run_fingerprint"], tuple(data["memory"]),
        )  # fmt: skip

    @classmethod
    def read(cls, file: Path) -> Cassette:
        """Raises: InvalidInput: there is no such file, or it is no cassette."""
        try:
            return cls.of_json(orjson.loads(file.read_bytes()))
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise InvalidInput(f"{file} is no cassette: {error!r}.") from error

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _outside(contexts: Iterable[JsonObject | None]) -> tuple[JsonObject, ...]:
    """The items of project and global memory of these packages, each once."""
    found: dict[tuple[str, str], JsonObject] = {}
    for context in contexts:
        for item in context["items"] if context else ():
            if item["layer"] != "task":
                found.setdefault((item["layer"], item["id"]), item)
    return tuple(found.values())


def layers_of(memory: Iterable[JsonObject]) -> dict[str, LayerStore]:
    """Stores that hold these items and that nothing else ever sees."""
    layers: dict[str, LayerStore] = {}
    for layer in ("task", "project", "global"):
        items = [item_of(one) for one in memory if one["layer"] == layer]
        layers[layer] = InMemoryLayer(_MOST, items)
    return layers


def _stage(record: Mapping[str, Any]) -> JsonObject:
    found = {**told(record["entry"]), "calls": list(record.get("calls", ()))}
    return found if record.get("begun", True) else {**found, "begun": False}


def told(entry: Mapping[str, Any]) -> JsonObject:
    """What of an entry must be the same when it is replayed."""
    return {
        "task": entry["task"],
        "stage": entry["stage_id"],
        "status": entry["status"],
        "code": (entry["error"] or {}).get("code", ""),
        "edge": entry["edge"],
        "output_hash": digest(entry["output"]),
    }


class Replay:
    """A gate, a log and a tape that answer from a cassette; nothing else is asked.

    Args:
        racing: whether stages may be cut off by others, so that one that is not on the tape just waits.

    Stages begin in the order in which they ended when they were recorded, one after the other.
    `divergence` is the first one, as `{task, stage, what, message}`, or None.
    """

    def __init__(self, cassette: Cassette, *, racing: bool = False) -> None:
        self._stages = {(s["task"], s["stage"]): s for s in cassette.stages}
        self._order = [(s["task"], s["stage"]) for s in cassette.stages]
        self._racing = racing
        self._done: set[tuple[str, str]] = set()
        self._next = 0
        self._news = asyncio.Condition()
        self._recorder = Recorder()
        self.divergence: JsonObject | None = None

    # -- tape ------------------------------------------------------------------------------------------------

    def equip(self, kit: Kit) -> Kit:
        agents = {
            n: FolderAgent(a.spec, _Nobody(), a.pattern) if isinstance(a, FolderAgent) else a  # type: ignore[arg-type]
            for n, a in kit.agents.items()
        }
        return equip(Kit(kit.project, kit.tools, agents, _nobody, kit.gate), self)

    async def through(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        number = len(calls.calls)
        calls.calls.append(call)
        recorded = self._stages.get((calls.task, calls.stage), {}).get("calls", ())
        if number >= len(recorded):
            raise self._diverged(
                calls.task, calls.stage, "call", f"call {number + 1} to {call['name']!r} is not on the tape"
            )
        known = recorded[number]
        for key in ("kind", "name", "request_hash"):
            if known[key] != call[key]:
                message = f"call {number + 1} has another {key}: {call[key]!r} instead of {known[key]!r}"
                raise self._diverged(calls.task, calls.stage, "call", message)
        if "error" in known:
            raise error_of(known)
        return known["answer"]

    # -- gate and log ----------------------------------------------------------------------------------------

    async def gate(self, task: str, stage: str, input: Any, context: JsonObject | None) -> None:
        self._recorder.begin(task, stage, context)
        key = (path_of(task), stage)
        async with self._news:
            if key not in self._stages and not self._racing:
                self._diverged(*key, "path", "the stage did not run in the recorded run")
                self._news.notify_all()
            try:
                async with asyncio.timeout(_STALLED):
                    await self._news.wait_for(lambda: self._may_begin(key))
            except TimeoutError:
                self._diverged(*key, "order", "the recorded order cannot be kept")
                self._news.notify_all()
        known = self._stages.get(key, {})
        if not known.get("begun", True) and known["code"]:
            raise StageFault(known["code"], "The stage did not begin in the recorded run.")

    def _may_begin(self, key: tuple[str, str]) -> bool:
        """Once the runs have diverged there is no order to keep."""
        due = self._order[self._next] if self._next < len(self._order) else None
        return self.divergence is not None or due == key

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        for record in records:
            if record["type"] == "stage":
                self._compare(told(record["entry"]))
        async with self._news:
            while self._next < len(self._order) and self._order[self._next] in self._done:
                self._next += 1
            self._news.notify_all()

    def _compare(self, now: JsonObject) -> None:
        key = (now["task"], now["stage"])
        self._done.add(key)
        known = self._stages.get(key)
        if known is None:
            return
        for what in ("status", "code", "edge", "output_hash"):
            if known[what] != now[what]:
                message = f"{what} is {now[what]!r}, on the tape it is {known[what]!r}"
                self._diverged(*key, what, message)
                return

    def report(self, result: TaskResult) -> JsonObject:
        """`{same, divergence, status, path}`."""
        missing = next((key for key in self._order if key not in self._done), None)
        if missing is not None:
            self._diverged(*missing, "path", "the stage was not reached")
        return {
            "same": self.divergence is None,
            "divergence": self.divergence,
            "status": result.status,
            "output": result.output,
            "path": list(result.path),
        }

    def _diverged(self, task: str, stage: str, what: str, message: str) -> StageFault:
        found = {"task": task, "stage": stage, "what": what, "message": f"{stage}: {message}."}
        self.divergence = self.divergence or found
        return StageFault("replay_divergence", found["message"])


def is_racing(plan: Plan) -> bool:
    """Whether timing can decide: the first clone to end (E21), or the first subtask to fail."""
    return any(
        (stage.role == "branch" and not stage.recombined)
        or (stage.node.split is not None and stage.node.split.on_failure == "fail_fast")
        for stage in plan.stages.values()
    )


class _Nobody:
    """The model of a replay: never asked."""


async def _nobody(
    agent: str,
    query: str,
    context: Mapping[str, Any],
    parent: ToolContext,
    terms: Terms = OWN_TERMS,
) -> Mapping[str, Any]:
    raise StageFault("replay_divergence", f"The agent {agent!r} is not on the tape.")
