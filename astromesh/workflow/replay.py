"""Replays a Task from its recording, and says where the two differ first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from astromesh.logs import redact_secrets
from astromesh.types import JsonObject
from astromesh.workflow.base import StageFault, TaskResult
from astromesh.workflow.journal import StageCalls, StageOrigin, comparable_fields, recorded_error
from astromesh.workflow.questions import Question

#: characters of a value that are shown, and those of a text before the place where it differs
_SHOWN, _BEFORE = 500, 40


class Difference(NamedTuple):
    """The first difference of two JSON values.

    Args:
        place: its steps, as `.findings[2].risk`; empty: the whole value.
        recorded, present: both values there as JSON, without secrets and shortened; empty: none.
    """

    place: str
    recorded: str
    present: str


class _Absent:
    """No value: the other side has one, or the recording is of a version that stored its hash alone."""


ABSENT = _Absent()


def first_difference(recorded: Any, present: Any) -> Difference:
    """Returns the first place where two JSON values differ."""
    place = ""
    while (step := _differing_step(recorded, present)) is not None:
        mark, recorded, present = step
        place += mark
    if isinstance(recorded, str) and isinstance(present, str):
        pairs = enumerate(zip(recorded, present, strict=False))
        same = next((n for n, (old, new) in pairs if old != new), min(len(recorded), len(present)))
        start = max(same - _BEFORE, 0)
        recorded, present = recorded[start:], present[start:]
    return Difference(place, shown(recorded), shown(present))


def _differing_step(recorded: Any, present: Any) -> tuple[str, Any, Any] | None:
    """Returns the first key or index where two objects or lists differ; None for other values."""
    return next((pair for pair in _pairs(recorded, present) if _unlike(pair[1], pair[2])), None)


def _pairs(recorded: Any, present: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(recorded, dict) and isinstance(present, dict):
        for key in {**recorded, **present}:
            yield f".{key}", recorded.get(key, ABSENT), present.get(key, ABSENT)
    elif isinstance(recorded, list) and isinstance(present, list):
        for index in range(max(len(recorded), len(present))):
            yield f"[{index}]", _at(recorded, index), _at(present, index)


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else ABSENT


def _unlike(one: Any, other: Any) -> bool:
    """Whether two values differ in JSON: 1 and 1.0 and true are three values."""
    return type(one) is not type(other) or _json(one) != _json(other)


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def shown(value: Any) -> str:
    """Returns a value as callers may see it."""
    if value is ABSENT:
        return ""
    text = redact_secrets(_json(value).decode())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# -- replaying -----------------------------------------------------------------------------------------------

#: takes the place of a stage, the recorded answer of its agent, and what makes the run; returns
#: `{"path", "at", "recorded", "replayed", …}` if they differ
RunCheck: TypeAlias = Callable[
    [str, Mapping[str, Any], Callable[[], Awaitable[Any]]], Awaitable[JsonObject | None]
]


class Replay:
    """A journal and a Task log that answer from a recording, call nothing and find the first divergence.

    Stages begin one after the other, in the order in which they ended when they were recorded.
    `divergence` is the first divergence, as `{task, stage, what, message}`, or None. Where a value differs it
    has `place`, `recorded` and `present` too (`Difference`).

    Args:
        stages: of a recording.
        check_run: makes the run of an agent again and compares it. None: its recorded answer is taken.
        stall_seconds: without any active stage, after which those that wait for their turn go on.

    Attributes:
        timing_dependent: Whether one stage may cancel another (`Plan.is_timing_dependent`). A stage that is
            not in the recording then waits instead of diverging.
    """

    def __init__(
        self, stages: Sequence[JsonObject], check_run: RunCheck | None = None, stall_seconds: float = 30.0
    ) -> None:
        self._check_run, self._stall_seconds = check_run, stall_seconds
        self._stages = {(s["task"], s["stage"]): s for s in stages}
        self._order = [(s["task"], s["stage"]) for s in stages]
        self.timing_dependent = False
        self._done: set[tuple[str, str]] = set()
        self._next = 0
        #: stages that wait for their turn, and those that have begun and not ended
        self._turns: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._active: set[tuple[str, str]] = set()
        self.divergence: JsonObject | None = None

    async def begin(self, calls: StageCalls) -> JsonObject | None:
        """Waits for the stage's turn. Returns its output if a person has edited it."""
        key = (calls.task, calls.stage)
        if key not in self._stages and not self.timing_dependent:
            self._diverged(*key, "path", "the stage did not run in the recorded run")
        if not self._may_begin(key):
            await self._wait_for_turn(key)
        self._begin_stage(key)
        known = self._stages.get(key, {})
        calls.edits = known.get("edits", ())
        if "started_at" in known:
            calls.origin = StageOrigin(known.get("task_id", ""), known["started_at"])
        if not known.get("begun", True) and known["code"]:
            raise StageFault(known["code"], "The stage did not begin in the recorded run.")
        return {"output": known["output"]} if known.get("edited") else None

    async def _wait_for_turn(self, key: tuple[str, str]) -> None:
        turn = self._turns[key] = asyncio.get_running_loop().create_future()
        try:
            while not turn.done():
                before = self._next
                await asyncio.wait([turn], timeout=self._stall_seconds)
                if not (turn.done() or self._active or self._next > before):
                    self._diverged(*key, "order", "the recorded order cannot be reproduced")
        finally:
            del self._turns[key]

    def _begin_stage(self, key: tuple[str, str]) -> None:
        self._active.add(key)
        if (task := asyncio.current_task()) is not None:  # it may be cancelled
            task.add_done_callback(lambda _: self._active.discard(key))

    def _tell_turns(self) -> None:
        """Lets the stage begin whose turn it is; all of them once the runs have diverged."""
        due = self._turns.get(self._due) if self._due is not None else None
        for turn in (due,) if self.divergence is None else tuple(self._turns.values()):
            if turn is not None and not turn.done():
                turn.set_result(None)

    @property
    def _due(self) -> tuple[str, str] | None:
        return self._order[self._next] if self._next < len(self._order) else None

    def _may_begin(self, key: tuple[str, str]) -> bool:
        """Whether it is the stage's turn. Once the runs have diverged, every stage may begin."""
        return self.divergence is not None or self._due == key

    async def answer(
        self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]], *, once: bool = False
    ) -> Any:
        number, place = len(calls.calls), (calls.task, calls.stage)
        calls.calls.append(call)
        recorded = self._stages.get(place, {}).get("calls", ())
        if number >= len(recorded):
            message = f"call {number + 1} to {call['name']!r} is not in the recording"
            raise self._diverged(*place, "call", message)
        known = recorded[number]
        for key in ("kind", "name", "request_hash"):
            if known[key] != call[key]:
                found, what = _call_difference(known, call, key), key.removesuffix("_hash")
                raise self._diverged(
                    *place, "call", f"call {number + 1}: {_difference_text(what, found)}", found
                )
        if "error" in known:
            raise recorded_error(known)
        if call["kind"] == "agent" and self._check_run is not None:
            differs = await self._check_run("@".join(place).lstrip("/"), known["answer"], work)
            if differs is not None:
                values = shown(differs["recorded"]), shown(differs["replayed"])
                difference = Difference(f" {differs['path']} {differs['at']}".rstrip(), *values)
                raise self._diverged(*place, "run", _difference_text("run", difference), difference)
        return known["answer"]

    def can_wait(self, task: str) -> bool:
        """Returns True: people of a replay have answered. See `People`."""
        return True

    async def ask(self, task: str, stage: str, ticket: str, question: Question) -> JsonObject:
        """Is never called: `answer` returns the recorded decision, or there is a divergence."""
        raise self._diverged("", stage, "call", "the question is not in the recording")

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        """Compares the records of stages with the recording. See `TaskLog`."""
        for record in records:
            if record["type"] == "stage":
                self._compare(comparable_fields(record["entry"]), record["entry"]["output"])
        while self._next < len(self._order) and self._order[self._next] in self._done:
            self._next += 1
        self._tell_turns()

    def _compare(self, now: JsonObject, output: Any) -> None:
        key = (now["task"], now["stage"])
        self._done.add(key)
        self._active.discard(key)
        known = self._stages.get(key)
        if known is None:
            return
        for what in ("status", "code", "edge", "output_hash"):
            if known[what] != now[what]:
                name, pair = what, (known[what], now[what])
                if what == "output_hash":
                    name, pair = "output", (known.get("output", ABSENT), output)
                found = first_difference(*pair)
                self._diverged(*key, name, _difference_text(name, found), found)
                return

    def report(self, result: TaskResult) -> JsonObject:
        """Returns `{reproduced, same, divergence, status, output, path}`; `same` is the earlier name."""
        missing = next((key for key in self._order if key not in self._done), None)
        if missing is not None:
            self._diverged(*missing, "path", "the stage was not reached")
        return {
            "reproduced": self.divergence is None,
            "same": self.divergence is None,
            "divergence": self.divergence,
            "status": result.status,
            "output": result.output,
            "path": list(result.path),
        }

    def _diverged(
        self, task: str, stage: str, what: str, message: str, difference: Difference | None = None
    ) -> StageFault:
        found: JsonObject = {"task": task, "stage": stage, "what": what, "message": f"{stage}: {message}."}
        self.divergence = self.divergence or found | (difference._asdict() if difference else {})
        self._tell_turns()
        return StageFault("replay_divergence", found["message"])


def _call_difference(known: JsonObject, call: JsonObject, key: str) -> Difference:
    if key == "request_hash":
        return first_difference(known.get("request", ABSENT), call["request"])
    return first_difference(known[key], call[key])


def _difference_text(what: str, found: Difference) -> str:
    recorded = found.recorded or "another value or none"
    return f"{what}{found.place} is {found.present or 'absent'}, but {recorded} in the recording"
