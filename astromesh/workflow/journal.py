"""The journal of a stage: records its calls of models, tools and runtime agents, or answers them.

A context variable says which stage a call belongs to. Patterns and operations do not know of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from astromesh.errors import AstromeshError, ProviderError, ToolError, ToolFailed, ToolTimeout
from astromesh.graph.call_record import (
    completion_of,
    completion_to_json,
    error_of,
    error_to_json,
    hash_of,
    request_hash,
    to_lenient_json,
)
from astromesh.providers.base import ModelPort
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, RunAgent, Tool, ToolContext
from astromesh.tools.results import describe
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject
from astromesh.workflow.base import StageFault, TaskResult


class StageCalls:
    """The calls of one execution of a stage, in the order in which they began.

    Args:
        task: path of the Task within the run.
        context: the context package that the stage received.
    """

    __slots__ = ("calls", "context", "stage", "task")

    def __init__(self, task: str, stage: str, context: JsonObject | None) -> None:
        self.task, self.stage, self.context = task, stage, context
        self.calls: list[JsonObject] = []

    def to_json(self) -> JsonObject:
        """Returns what the record of the stage contains of them."""
        fields = {"calls": self.calls, "context": self.context}
        return {key: value for key, value in fields.items() if value}


class StageJournal(Protocol):
    """Stands between stages and what they call: `Recorder` and `Replay`."""

    async def begin(self, calls: StageCalls) -> None:
        """Returns when the stage may begin.

        Raises:
            StageFault: the stage fails.
        """

    async def answer(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the answer of a call as JSON.

        Args:
            calls: of the stage that makes the call.
            call: `{kind, name, request_hash}`.
            work: makes the call.
        """


#: calls of the stage that the current code runs in
_CURRENT_CALLS: ContextVar[StageCalls] = ContextVar("astromesh_stage_calls")


async def begin_stage(journal: StageJournal, calls: StageCalls) -> None:
    """Begins a stage: the calls of the current context belong to it from here on.

    Raises:
        StageFault: the stage fails.
    """
    _CURRENT_CALLS.set(calls)
    await journal.begin(calls)


# -- what stages call ----------------------------------------------------------------------------------------


class JournaledModel:
    """A model behind a journal.

    Args:
        name: of the model in providers.yaml.
    """

    def __init__(self, model: ModelPort, name: str, journal: StageJournal) -> None:
        self._model, self._name, self._journal = model, name, journal

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        async def work() -> JsonObject:
            return completion_to_json(await self._model.complete(request))

        call = {"kind": "model", "name": self._name, "request_hash": request_hash(request)}
        return completion_of(await self._journal.answer(_CURRENT_CALLS.get(), call, work))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        """Yields the whole text as one piece."""
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result


class JournaledTool:
    """A tool behind a journal."""

    def __init__(self, tool: Tool, journal: StageJournal) -> None:
        self.spec = tool.spec
        self._tool, self._journal = tool, journal

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        async def work() -> Any:
            try:
                return to_lenient_json(await self._tool.call(arguments, context))
            except ToolError:
                raise
            except Exception as error:  # foreign code: any exception of a tool is recorded as its answer
                raise ToolFailed(f"The tool {self.spec.name!r} failed: {describe(error)}") from error

        call = {"kind": "tool", "name": self.spec.name, "request_hash": request_hash(arguments)}
        return await self._journal.answer(_CURRENT_CALLS.get(), call, work)


def journaled_agents(run_agent: RunAgent, journal: StageJournal) -> RunAgent:
    """Puts whole runs of the runtime's agents, not the calls inside them, behind a journal."""

    async def run(
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        async def work() -> Any:
            return to_lenient_json(dict(await run_agent(agent, query, context, parent, terms)))

        call = {"kind": "agent", "name": agent, "request_hash": request_hash([query, dict(context)])}
        answer: Mapping[str, Any] = await journal.answer(_CURRENT_CALLS.get(), call, work)
        return answer

    return run


# -- recording -----------------------------------------------------------------------------------------------

#: type of a call that a time limit or the end of its Task cancelled
_CANCELLED = "Cancelled"


class Recorder:
    """Makes every call and records its answer or its error."""

    async def begin(self, calls: StageCalls) -> None:
        """Returns at once."""

    async def answer(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        calls.calls.append(call)
        try:
            call["answer"] = answer = await work()
        except AstromeshError as error:
            call["error"] = error_to_json(error)
            raise
        except asyncio.CancelledError:
            call["error"] = {"type": _CANCELLED, "message": "The call did not end in time."}
            raise
        return answer


def comparable_fields(entry: Mapping[str, Any]) -> JsonObject:
    """Returns the fields of an entry that a replay must reproduce."""
    return {
        "task": entry["task"],
        "stage": entry["stage_id"],
        "status": entry["status"],
        "code": (entry["error"] or {}).get("code", ""),
        "edge": entry["edge"],
        "output_hash": hash_of(entry["output"]),
    }


# -- replaying -----------------------------------------------------------------------------------------------

#: seconds that a stage waits for those that were recorded before it
_STALL_TIMEOUT = 30.0


class Replay:
    """A journal and a Task log that answer from a recording, call nothing and find the first divergence.

    Stages begin one after the other, in the order in which they ended when they were recorded.
    `divergence` is the first divergence, as `{task, stage, what, message}`, or None.

    Args:
        stages: of a recording.
        timing_dependent: whether one stage may cancel another (`Plan.is_timing_dependent`); a stage that is
            not in the recording then waits instead of diverging.
    """

    def __init__(self, stages: Sequence[JsonObject], *, timing_dependent: bool = False) -> None:
        self._stages = {(s["task"], s["stage"]): s for s in stages}
        self._order = [(s["task"], s["stage"]) for s in stages]
        self.timing_dependent = timing_dependent
        self._done: set[tuple[str, str]] = set()
        self._next = 0
        self._changed = asyncio.Condition()
        self.divergence: JsonObject | None = None

    async def begin(self, calls: StageCalls) -> None:
        """Returns when it is the stage's turn."""
        key = (calls.task, calls.stage)
        async with self._changed:
            if key not in self._stages and not self.timing_dependent:
                self._diverged(*key, "path", "the stage did not run in the recorded run")
                self._changed.notify_all()
            try:
                async with asyncio.timeout(_STALL_TIMEOUT):
                    await self._changed.wait_for(lambda: self._may_begin(key))
            except TimeoutError:
                self._diverged(*key, "order", "the recorded order cannot be reproduced")
                self._changed.notify_all()
        known = self._stages.get(key, {})
        if not known.get("begun", True) and known["code"]:
            raise StageFault(known["code"], "The stage did not begin in the recorded run.")

    def _may_begin(self, key: tuple[str, str]) -> bool:
        """Returns whether it is the stage's turn. Once the runs have diverged, every stage may begin."""
        due = self._order[self._next] if self._next < len(self._order) else None
        return self.divergence is not None or due == key

    async def answer(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        number, place = len(calls.calls), (calls.task, calls.stage)
        calls.calls.append(call)
        recorded = self._stages.get(place, {}).get("calls", ())
        if number >= len(recorded):
            message = f"call {number + 1} to {call['name']!r} is not in the recording"
            raise self._diverged(*place, "call", message)
        known = recorded[number]
        for key in ("kind", "name", "request_hash"):
            if known[key] != call[key]:
                message = f"call {number + 1} has another {key}: {call[key]!r} instead of {known[key]!r}"
                raise self._diverged(*place, "call", message)
        if "error" in known:
            raise _recorded_error(known)
        return known["answer"]

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        """Compares the records of stages with the recording. See `TaskLog`."""
        for record in records:
            if record["type"] == "stage":
                self._compare(comparable_fields(record["entry"]))
        async with self._changed:
            while self._next < len(self._order) and self._order[self._next] in self._done:
                self._next += 1
            self._changed.notify_all()

    def _compare(self, now: JsonObject) -> None:
        key = (now["task"], now["stage"])
        self._done.add(key)
        known = self._stages.get(key)
        if known is None:
            return
        for what in ("status", "code", "edge", "output_hash"):
            if known[what] != now[what]:
                message = f"{what} is {now[what]!r}, but {known[what]!r} in the recording"
                self._diverged(*key, what, message)
                return

    def report(self, result: TaskResult) -> JsonObject:
        """Returns `{same, divergence, status, output, path}`."""
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


def _recorded_error(call: JsonObject) -> Exception:
    """Returns the error that a recorded call ended with."""
    error, is_tool = call["error"], call["kind"] == "tool"
    if error["type"] == _CANCELLED:
        return ToolTimeout(error["message"]) if is_tool else TimeoutError(error["message"])
    return error_of(error, ToolFailed if is_tool else ProviderError)
