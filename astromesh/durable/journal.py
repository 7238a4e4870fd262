"""The record of a durable run: it answers finished steps and stores new ones.

Steps are keyed by (path, n): the branch of the run's tree that made them, and their number in that branch.
They are never keyed by time, so concurrent branches keep their own results. A finished step answers only the
same request. Another request in its place is a `Divergence` that ends the run.

    record of the step           model call                     tool call
    --------------------------   ----------------------------   ---------------------------------------------
    none                         called, then recorded          effect `read`, repeatable: as a model call;
                                                                else intent first, then called and recorded
    intent                       called again under its         `read`, repeatable: called again; else a
                                 number, `model.restarted`      person decides whether to call it again
    done                         as recorded                    as recorded
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from astromesh.durable import failpoints
from astromesh.durable.approvals import ApprovalWaits
from astromesh.durable.base import JournalStep, RunRow, StepKind, StepState
from astromesh.durable.event_stream import DurableStream
from astromesh.durable.writer import SegmentWriter
from astromesh.errors import Divergence, OutcomeUnknown, StoreError, UpstreamError
from astromesh.graph import call_record
from astromesh.graph.scope import AskModel, CallTool, ReplayTool
from astromesh.telemetry.events import MODEL_DELTA
from astromesh.telemetry.ids import derived_run_id
from astromesh.tools.base import HumanQuestion, ToolPort
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Event,
    JsonObject,
    ToolCall,
    ToolResult,
    ToolSpec,
)

T = TypeVar("T")


class ReplayListener(Protocol):
    """Receives the answers of a model that the record gives to a resumed run."""

    def record_replay(self, request: CompletionRequest, result: CompletionResult) -> None: ...


LoadEvents = Callable[[str], Awaitable[Sequence[Event]]]


class StepLog:
    """The record of a run and of the runs nested in it.

    Args:
        row: the accepted run.
        steps: the steps on disk.
        waiting: asks people.
        past: loads the events that earlier segments wrote for a run of the tree.
        postpone: ends the segment, so that another one begins soon.

    Attributes:
        accepted_at: the time that the prompts of all its segments show, in seconds since the epoch.
        failure: the divergence that was found. The run fails, even if it handles the error.
        suspended: the segment ends, and no step begins any more.
    """

    def __init__(
        self,
        row: RunRow,
        writer: SegmentWriter,
        waiting: ApprovalWaits,
        steps: tuple[JournalStep, ...],
        past: LoadEvents,
        postpone: Callable[[], None],
    ) -> None:
        self.run_id, self.agent, self.accepted_at = row.run_id, row.agent, row.created_at
        self.manifest: JsonObject = row.manifest or {}
        self.writer, self.waiting, self.past = writer, waiting, past
        self.postpone = postpone
        self.failure: Divergence | None = None
        self.suspended = False
        self._steps = {(step.path, step.n): step for step in steps}
        self._passed: dict[str, int] = {}
        #: done steps of models and tools that this segment has added, and whether they hold hidden reasoning
        self._added_calls: list[tuple[JournalStep, bool]] = []

    def number(self, path: str) -> int:
        """Returns the number, in its path, of a step that begins now.

        Raises:
            asyncio.CancelledError: the segment ends.
        """
        if self.suspended:
            raise asyncio.CancelledError
        n = self._passed[path] = self._passed.get(path, 0) + 1
        return n

    def has_next(self, path: str) -> bool:
        """Whether the record has the step that begins next on this path."""
        return (path, self._passed.get(path, 0) + 1) in self._steps

    def find(self, path: str, n: int, request_hash: str) -> JournalStep | None:
        """Returns the step of the record, or None. Raises: Divergence: it was another request."""
        if self.failure is not None:
            raise self.failure
        step = self._steps.get((path, n))
        if step is not None and step.request_hash != request_hash:
            self.failure = Divergence(
                f"The run cannot be resumed: step {n} of {path!r} makes a different request than the "
                "recorded one. Start the run again."
            )
            raise self.failure
        return step

    def add(self, step: JournalStep) -> None:
        self.writer.step(step)

    async def write(self, step: JournalStep) -> None:
        """Adds a step and returns when it is on disk, with everything before it."""
        if step.state == "done":
            self._added_calls.append((step._replace(output=None), _has_reasoning(step)))
        self.writer.step(step)
        await self.writer.flush()

    def drop_outputs(self, *, always: bool) -> None:
        """Deletes the raw outputs of models and tools from the record of a run that has ended.

        Args:
            always: all of them. Otherwise those with hidden reasoning, and all if a run is nested in it: the
                agent of a nested run may have output rules.
        """
        recorded = (s for s in self._steps.values() if s.kind in _CALL_KINDS and s.state == "done")
        calls = [*((step, _has_reasoning(step)) for step in recorded), *self._added_calls]
        always = always or any(_NESTED in step.path for step, _ in calls)
        for step, has_reasoning in calls:
            if always or has_reasoning:
                self.writer.step(step._replace(output=None))


class RunJournal:
    """The journal of one run: the accepted one, or one nested in it.

    Args:
        place: the place of this run in the tree of the accepted run; empty for that run itself.
        model: receives the answers that the record gives.
    """

    _stream: DurableStream | None = None
    _last_step: int = 0

    def __init__(self, step_log: StepLog, place: str, run_id: str, model: ReplayListener) -> None:
        self.step_log, self.place, self.run_id, self._model = step_log, place, run_id, model

    def attach(self, stream: DurableStream) -> None:
        """Sends the events of the run to a stream. Steps are numbered after those in the stream."""
        self._stream, self._last_step = stream, stream.last_step

    def at(self, path: str) -> str:
        return f"{self.place}/{path}" if self.place and path else self.place or path

    def next_step_number(self, step: int) -> int:
        """Returns a number for a model call. No other call of the run has it, before or after a crash."""
        self._last_step = max(self._last_step + 1, step)
        return self._last_step

    def nested(self, path: str, call_id: str, agent: str) -> tuple[str, str]:
        """Returns place and id of a run that is started here. It has the same ones when it starts again."""
        place = f"{self.at(path)}{_NESTED}{agent}:{call_id}"
        place = f"{place}#{self.step_log.number(place)}"
        return place, derived_run_id(self.step_log.run_id, place)

    # -- model calls ---------------------------------------------------------------------------------------

    async def model(
        self, scope: Any, step: int, request: CompletionRequest, role: str, ask: AskModel
    ) -> CompletionResult:
        path, digest = self.at(scope.path) or "model", call_record.model_hash(request, role)
        n = self.step_log.number(path)
        found = self.step_log.find(path, n, digest)
        if found is not None and found.state == "done":
            return self._answer(scope, found.output or {}, request, role)
        number = self._begin(found, step)

        def entry(state: StepState, **output: Any) -> JournalStep:
            return JournalStep(path, n, "model", digest, state, {"step": number, **output})

        self.step_log.add(entry("intent"))
        failpoints.reach(failpoints.BEFORE_MODEL)
        try:
            with self.step_log.waiting.calling():
                result = await ask(number)
        except UpstreamError as error:
            if not isinstance(error, StoreError):
                await self.step_log.write(entry("done", failure=call_record.error_to_json(error)))
            raise
        await self.step_log.write(entry("done", result=call_record.completion_to_json(result)))
        failpoints.reach(failpoints.AFTER_MODEL)
        return result

    def _begin(self, found: JournalStep | None, step: int) -> int:
        if found is None:
            return self.next_step_number(step)
        number: int = (found.output or {}).get("step", step)
        self._last_step = max(self._last_step, number)
        if self._stream is not None:
            self._stream.restart_step(number)
        return number

    def _answer(
        self, scope: Any, output: JsonObject, request: CompletionRequest, role: str
    ) -> CompletionResult:
        number = output["step"]
        self._last_step = max(self._last_step, number)
        scope.ledger.spend("model_calls")
        if (failure := output.get("failure")) is not None:
            raise call_record.error_of(failure)
        result = call_record.completion_of(output["result"])
        scope.ledger.add_usage(result.usage)
        self._model.record_replay(request, result)
        if self._stream is not None:
            self._stream.replay_step(number)
            _emit_again(scope, number, role, result)
        return result

    # -- tool calls ----------------------------------------------------------------------------------------

    async def tool(
        self, scope: Any, tools: ToolPort, call: ToolCall, do: CallTool, retell: ReplayTool
    ) -> ToolResult:
        context = scope.tool_context(call.id, call.name)
        spec = next((s for s in tools.specs() if s.name == call.name), None)
        if spec is not None and not spec.recorded:
            return await do(context)
        path, digest = f"{self.at(scope.path)}/tool:{call.id}", call_record.tool_hash(call)
        n = self.step_log.number(path)
        found = self.step_log.find(path, n, digest)
        if found is not None and found.state == "done":
            result = call_record.result_of(call, found.output or {})
            retell(result)
            return result
        handle = ToolCallStep(
            self.step_log, JournalStep(path, n, "tool", digest, "intent"), call, found, scope.agent
        )
        with self.step_log.waiting.calling():
            result = await do(replace(context, step=handle))
        await self.step_log.write(
            handle.step._replace(state="done", output=call_record.result_to_json(result))
        )
        failpoints.reach(failpoints.TOOL_DONE)
        return result

    # -- people --------------------------------------------------------------------------------------------

    async def person(self, scope: Any, ticket: str, question: HumanQuestion) -> JsonObject:
        path = f"{self.at(scope.path)}/human:{ticket}".lstrip("/")
        arguments = call_record.to_plain_json(question.arguments)
        return await self._decision(path, question._replace(arguments=arguments, agent=scope.agent))

    async def identity(self, question: HumanQuestion) -> bool:
        """Asks for the caller's token once more than it was sent so far. Returns False if it is refused."""
        path = self.at("identity")
        while True:
            if (await self._decision(path, question))["decision"] != "approve":
                return False

    async def _decision(self, path: str, question: HumanQuestion) -> JsonObject:
        n = self.step_log.number(path)
        found = self.step_log.find(path, n, "")
        with self.step_log.waiting.calling():  # the work that the question interrupts
            step = JournalStep(path, n, "wait", "", "intent")
            return await self.step_log.waiting.decision(step, question, found)

    # -- values from outside the run -----------------------------------------------------------------------

    def once(
        self,
        name: str,
        make: Callable[[], T],
        to_json: Callable[[T], JsonObject],
        of_json: Callable[[JsonObject], T],
    ) -> T:
        """Does what `value` does, for a value that needs no await."""
        path = self.at(name)
        found = self.step_log.find(path, 1, "")
        if found is not None and found.output is not None:
            return of_json(found.output)
        made = make()
        self.step_log.add(JournalStep(path, 1, _VALUE, "", "done", to_json(made)))
        return made

    async def value(
        self,
        name: str,
        make: Callable[[], Awaitable[T]],
        to_json: Callable[[T], JsonObject],
        of_json: Callable[[JsonObject], T],
    ) -> T:
        """Returns a value that may differ when it is made again: the record keeps the first one."""
        path = self.at(name)
        found = self.step_log.find(path, 1, "")
        if found is not None and found.output is not None:
            return of_json(found.output)
        with self.step_log.waiting.calling():
            made = await make()
        self.step_log.add(JournalStep(path, 1, _VALUE, "", "done", to_json(made)))
        return made

    async def require_lease(self) -> None:
        """Returns once the lease has just been confirmed. Call it before each effect that others see.

        Raises:
            Divergence: the run diverged before, and handled that as another error.
        """
        if self.step_log.failure is not None:
            raise self.step_log.failure
        await self.step_log.writer.require_lease()


class ToolCallStep:
    """`RecordedToolCall` of one call.

    Args:
        step: its intent.
        found: the step in the record.
        agent: the agent that calls.
    """

    def __init__(
        self, step_log: StepLog, step: JournalStep, call: ToolCall, found: JournalStep | None, agent: str
    ) -> None:
        self.step = step
        self._step_log, self._call, self._found, self._agent = step_log, call, found, agent

    async def record_intent(self, spec: ToolSpec) -> None:
        if spec.repeatable:
            return
        if self._found is not None:
            await self._ask_whether_again()
        await self._step_log.write(self.step)
        failpoints.reach(failpoints.TOOL_INTENT)

    async def ask(self, request: HumanQuestion) -> JsonObject:
        path = f"{self.step.path}/{request.kind}"
        n = self._step_log.number(path)
        found = self._step_log.find(path, n, self.step.request_hash)
        return await self._step_log.waiting.decision(
            JournalStep(path, n, "wait", self.step.request_hash, "intent"),
            request._replace(agent=self._agent),
            found,
        )

    def has_request(self, kind: str) -> bool:
        return self._step_log.has_next(f"{self.step.path}/{kind}")

    async def _ask_whether_again(self) -> None:
        """Asks a person: the process died during this call, and its outcome is unknown."""
        self._step_log.add(self.step._replace(state="unknown"))
        arguments = call_record.arguments_of(self._call)
        answer = await self.ask(HumanQuestion("unknown_outcome", self._call.name, arguments))
        if answer["decision"] != "approve":
            raise OutcomeUnknown(
                f"The server stopped while the tool {self._call.name!r} was called. The call may have had "
                "its effect; it was not repeated."
            )


_VALUE: StepKind = "value"
_CALL_KINDS = ("model", "tool")
#: in a path, before the place of a nested run
_NESTED = "/run:"


def _has_reasoning(step: JournalStep) -> bool:
    """Whether a recorded answer holds what only its provider may read: signed or encrypted thoughts."""
    result = (step.output or {}).get("result") if step.kind == "model" else None
    return result is not None and any(call_record.has_kept(call) for call in result["tool_calls"])


def _emit_again(scope: Any, step: int, role: str, result: CompletionResult) -> None:
    """Emits the events of a recorded model call. The stream drops those that listeners have received."""
    emit = scope.events.emit
    emit("model.started", step=step, role=role)
    if scope.events.streaming and result.content:
        emit(MODEL_DELTA, step=step, role=role, content=result.content)
    emit("model.finished", step=step, role=role, usage=result.usage.to_json())
