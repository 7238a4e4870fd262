"""The record of a durable run: what is finished is answered from it, what happens is added to it.

Steps are keyed by (path, n): the branch of the run's tree that made them and which one of that branch they
are, never by when they were made, so that concurrent branches keep their own results (R17). A finished step
answers only the same request; another one at its place is a `Divergence` that ends the run.

    what the record holds        model call                     tool call
    --------------------------   ----------------------------   ---------------------------------------------
    nothing                      made, then recorded            effect `read`, repeatable: as a model call;
                                                                else intent first, then made, then recorded
    intent                       made again under its number,   `read`, repeatable: made again; else a person
                                 `model.restarted`              is asked whether to do it again
    done                         as recorded                    as recorded
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from astromesh.abc.durable import RunRow, Step, StepKind, StepState
from astromesh.abc.tool import Asked, ToolPort
from astromesh.errors import Divergence, OutcomeUnknown, StoreError, UpstreamError
from astromesh.node.journal import Ask, Do, Retell
from astromesh.runtime import failpoints, recorded
from astromesh.runtime.durable_stream import DurableStream
from astromesh.runtime.ids import derived_run_id
from astromesh.runtime.waiting import Waiting
from astromesh.runtime.writer import Writer
from astromesh.telemetry.stream import DELTA
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


class Told(Protocol):
    """Learns what a model answered before the run was taken up again."""

    def replayed(self, request: CompletionRequest, result: CompletionResult) -> None: ...


Past = Callable[[str], Awaitable[Sequence[Event]]]


class Book:
    """The record of a run and of all that is nested in it.

    Args:
        row: of the run that was accepted.
        steps: those on disk.
        waiting: asks people.
        past: the events of a run of the tree that earlier segments have left.
        postpone: ends the segment, to begin another one soon.

    `failure` is the divergence that was found: whatever the run makes of it, it has failed. `suspended`: the
    segment ends here; nothing begins any more.
    """

    def __init__(
        self,
        row: RunRow,
        writer: Writer,
        waiting: Waiting,
        steps: tuple[Step, ...],
        past: Past,
        postpone: Callable[[], None],
    ) -> None:
        self.run_id, self.agent, self.asked_at = row.run_id, row.agent, row.created_at
        self.manifest: JsonObject = row.manifest or {}
        self.writer, self.waiting, self.past = writer, waiting, past
        self.postpone = postpone
        self.failure: Divergence | None = None
        self.suspended = False
        self._steps = {(step.path, step.n): step for step in steps}
        self._passed: dict[str, int] = {}
        #: done steps of models and tools that this segment has added
        self._heard: list[Step] = []

    def number(self, path: str) -> int:
        """Which one of its path a step is that begins now.

        Raises:
            asyncio.CancelledError: the segment ends.
        """
        if self.suspended:
            raise asyncio.CancelledError
        n = self._passed[path] = self._passed.get(path, 0) + 1
        return n

    def comes(self, path: str) -> bool:
        """Whether the record holds the step that begins next on this path."""
        return (path, self._passed.get(path, 0) + 1) in self._steps

    def find(self, path: str, n: int, request_hash: str) -> Step | None:
        """Raises: Divergence: there is a step, and it was another request."""
        if self.failure is not None:
            raise self.failure
        step = self._steps.get((path, n))
        if step is not None and step.request_hash != request_hash:
            self.failure = Divergence(
                f"The run cannot be taken up again: step {n} of {path!r} asks for something else than its "
                "record. Start it anew."
            )
            raise self.failure
        return step

    def add(self, step: Step) -> None:
        self.writer.step(step)

    async def write(self, step: Step) -> None:
        """Adds a step and returns when it is on disk, with everything before it."""
        if step.state == "done":
            self._heard.append(step._replace(output=None))
        self.writer.step(step)
        await self.writer.flush()

    def forget(self, *, always: bool) -> None:
        """Takes out what models and tools have said, raw, when nobody will take the run up again.

        Args:
            always: also where no run is nested in it, whose agent might have output rules.
        """
        told = (step for step in self._steps.values() if step.kind in _HEARD and step.state == "done")
        heard = (*told, *self._heard)
        if always or any(_NESTED in step.path for step in heard):
            for step in heard:
                self.writer.step(step._replace(output=None))


class RunJournal:
    """The journal of one run: the accepted one, or one nested in it.

    Args:
        place: where in the tree of the accepted run this one stands; empty for itself.
        model: learns what was answered.
    """

    _stream: DurableStream | None = None
    _top: int = 0

    def __init__(self, book: Book, place: str, run_id: str, model: Told) -> None:
        self.book, self.place, self.run_id, self._model = book, place, run_id, model

    def hear(self, stream: DurableStream) -> None:
        """The run's events go here; steps are numbered behind those that it has seen."""
        self._stream, self._top = stream, stream.last_step

    def at(self, path: str) -> str:
        return f"{self.place}/{path}" if self.place and path else self.place or path

    def fresh(self, step: int) -> int:
        """A number for a model call that no other call of this run has, before a crash or after it."""
        self._top = max(self._top + 1, step)
        return self._top

    def nested(self, path: str, call_id: str, agent: str) -> tuple[str, str]:
        """Place and id of a run that is started here: the same ones when it is started again."""
        place = f"{self.at(path)}{_NESTED}{agent}:{call_id}"
        place = f"{place}#{self.book.number(place)}"
        return place, derived_run_id(self.book.run_id, place)

    # -- model calls ---------------------------------------------------------------------------------------

    async def model(
        self, scope: Any, step: int, request: CompletionRequest, role: str, ask: Ask
    ) -> CompletionResult:
        path, digest = self.at(scope.path) or "model", recorded.model_hash(request, role)
        n = self.book.number(path)
        found = self.book.find(path, n, digest)
        if found is not None and found.state == "done":
            return self._answer(scope, found.output or {}, request, role)
        number = self._begin(found, step)

        def entry(state: StepState, **output: Any) -> Step:
            return Step(path, n, "model", digest, state, {"step": number, **output})

        self.book.add(entry("intent"))
        failpoints.passing(failpoints.BEFORE_MODEL)
        try:
            with self.book.waiting.working():
                result = await ask(number)
        except UpstreamError as error:
            if not isinstance(error, StoreError):
                await self.book.write(entry("done", failure=recorded.failure_to_json(error)))
            raise
        await self.book.write(entry("done", result=recorded.completion_to_json(result)))
        failpoints.passing(failpoints.AFTER_MODEL)
        return result

    def _begin(self, found: Step | None, step: int) -> int:
        if found is None:
            return self.fresh(step)
        number: int = (found.output or {}).get("step", step)
        self._top = max(self._top, number)
        if self._stream is not None:
            self._stream.restarted(number)
        return number

    def _answer(
        self, scope: Any, output: JsonObject, request: CompletionRequest, role: str
    ) -> CompletionResult:
        number = output["step"]
        self._top = max(self._top, number)
        scope.ledger.spend("model_calls")
        if (failure := output.get("failure")) is not None:
            raise recorded.failure_of(failure)
        result = recorded.completion_of(output["result"])
        scope.ledger.add_usage(result.usage)
        self._model.replayed(request, result)
        if self._stream is not None:
            self._stream.answered(number)
            _speak_again(scope, number, role, result)
        return result

    # -- tool calls ----------------------------------------------------------------------------------------

    async def tool(self, scope: Any, tools: ToolPort, call: ToolCall, do: Do, retell: Retell) -> ToolResult:
        context = scope.tool_context(call.id, call.name)
        spec = next((s for s in tools.specs() if s.name == call.name), None)
        if spec is not None and not spec.recorded:
            return await do(context)
        path, digest = f"{self.at(scope.path)}/tool:{call.id}", recorded.tool_hash(call)
        n = self.book.number(path)
        found = self.book.find(path, n, digest)
        if found is not None and found.state == "done":
            result = recorded.result_of(call, found.output or {})
            retell(result)
            return result
        handle = CallStep(self.book, Step(path, n, "tool", digest, "intent"), call, found, scope.agent)
        with self.book.waiting.working():
            result = await do(replace(context, step=handle))
        await self.book.write(handle.step._replace(state="done", output=recorded.result_to_json(result)))
        failpoints.passing(failpoints.TOOL_DONE)
        return result

    # -- people --------------------------------------------------------------------------------------------

    async def person(self, scope: Any, ticket: str, asked: Asked) -> JsonObject:
        path = f"{self.at(scope.path)}/human:{ticket}".lstrip("/")
        about = recorded.plain(asked.arguments)
        return await self._decided(path, asked._replace(arguments=about, agent=scope.agent))

    async def identity(self, asked: Asked) -> bool:
        """Asks for the caller's token once more than it was shown so far; False where it is refused."""
        path = self.at("identity")
        while True:
            if (await self._decided(path, asked))["decision"] != "approve":
                return False

    async def _decided(self, path: str, asked: Asked) -> JsonObject:
        n = self.book.number(path)
        found = self.book.find(path, n, "")
        with self.book.waiting.working():  # a question stands within the work that it interrupts
            return await self.book.waiting.decision(Step(path, n, "wait", "", "intent"), asked, found)

    # -- what the run is told from outside -----------------------------------------------------------------

    def once(
        self,
        name: str,
        make: Callable[[], T],
        to_json: Callable[[T], JsonObject],
        of_json: Callable[[JsonObject], T],
    ) -> T:
        """`value` of what is made at once."""
        path = self.at(name)
        found = self.book.find(path, 1, "")
        if found is not None and found.output is not None:
            return of_json(found.output)
        made = make()
        self.book.add(Step(path, 1, _VALUE, "", "done", to_json(made)))
        return made

    async def value(
        self,
        name: str,
        make: Callable[[], Awaitable[T]],
        to_json: Callable[[T], JsonObject],
        of_json: Callable[[JsonObject], T],
    ) -> T:
        """Something that may differ when it is asked for again: once made, it stays as it was."""
        path = self.at(name)
        found = self.book.find(path, 1, "")
        if found is not None and found.output is not None:
            return of_json(found.output)
        with self.book.waiting.working():
            made = await make()
        self.book.add(Step(path, 1, _VALUE, "", "done", to_json(made)))
        return made

    async def hold(self) -> None:
        """Returns when the lease was still held a moment ago: before what others will see.

        Raises:
            Divergence: the run has hidden one.
        """
        if self.book.failure is not None:
            raise self.book.failure
        await self.book.writer.hold()


class CallStep:
    """`ToolStep` of one call.

    Args:
        step: its intent.
        found: what the record held of it.
        agent: that calls.
    """

    def __init__(self, book: Book, step: Step, call: ToolCall, found: Step | None, agent: str) -> None:
        self.step = step
        self._book, self._call, self._found, self._agent = book, call, found, agent

    async def intend(self, spec: ToolSpec) -> None:
        if spec.repeatable:
            return
        if self._found is not None:
            await self._ask_whether_again()
        await self._book.write(self.step)
        failpoints.passing(failpoints.TOOL_INTENT)

    async def ask(self, asked: Asked) -> JsonObject:
        path = f"{self.step.path}/{asked.kind}"
        n = self._book.number(path)
        found = self._book.find(path, n, self.step.request_hash)
        return await self._book.waiting.decision(
            Step(path, n, "wait", self.step.request_hash, "intent"), asked._replace(agent=self._agent), found
        )

    def asked(self, kind: str) -> bool:
        return self._book.comes(f"{self.step.path}/{kind}")

    async def _ask_whether_again(self) -> None:
        """The process died in the middle of this call; nobody knows what came of it."""
        self._book.add(self.step._replace(state="unknown"))
        said = await self.ask(Asked("unknown_outcome", self._call.name, recorded.readable(self._call)))
        if said["decision"] != "approve":
            raise OutcomeUnknown(
                f"The tool {self._call.name!r} was called when the server stopped. What it does may have "
                "happened; it was not called again."
            )


_VALUE: StepKind = "value"
_HEARD = ("model", "tool")
#: of a path: what follows is the place of a run within a run
_NESTED = "/run:"


def _speak_again(scope: Any, step: int, role: str, result: CompletionResult) -> None:
    """Takes the run's voice to where it was: the stream drops what was said."""
    emit = scope.events.emit
    emit("model.started", step=step, role=role)
    if scope.events.streaming and result.content:
        emit(DELTA, step=step, role=role, content=result.content)
    emit("model.finished", step=step, role=role, usage=result.usage.to_json())
