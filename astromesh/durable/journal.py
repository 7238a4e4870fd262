"""The record of a durable run: it answers finished steps and stores new ones.

Steps are keyed by (path, n): the branch of the run's tree that made them, and their number in that branch.
They are never keyed by time, so concurrent branches keep their own results. A finished step answers only the
same request. Another request in its place is a `Divergence` that ends the run.

    record of the step           model call                     tool call, visit of a node
    --------------------------   ----------------------------   ---------------------------------------------
    none                         called, then recorded          effect `read`, repeatable: as a model call;
                                                                else intent first, then called and recorded
    intent                       called again under its         `read`, repeatable: called again; else a
                                 number, `model.restarted`      person decides whether to call it again
    done                         as recorded                    as recorded

The step of a node is `node:PATH`, and its number that of the visit. A finished one lists the calls that were
made in it, so that a resumed run counts and emits them without the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from time import time
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from msgspec import convert, to_builtins

from astromesh.durable import failpoints
from astromesh.durable.base import JournalStep, StepKind, StepState
from astromesh.durable.event_stream import DurableStream
from astromesh.durable.fork import ForkEdits, recorded_effect
from astromesh.durable.recording import (
    CALL_KINDS,
    Redactor,
    RequestEncoder,
    StepStart,
    message_json,
    redacted,
    redacted_arguments,
)
from astromesh.durable.writer import SegmentWriter
from astromesh.errors import Divergence, NondeterministicGraph, OutcomeUnknown, StoreError, UpstreamError
from astromesh.graph import call_record
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import AskModel, CallTool, NodeEffect, ReplayTool
from astromesh.telemetry.events import MODEL_DELTA
from astromesh.telemetry.ids import derived_run_id
from astromesh.tools.base import HumanQuestion, ToolPort
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Event,
    JsonObject,
    Message,
    ToolCall,
    ToolResult,
    ToolSpec,
)

T = TypeVar("T")


class ReplayListener(Protocol):
    """Receives the answers of a model that the record gives to a resumed run."""

    @property
    def keeps_requests(self) -> bool:
        """Whether it needs the requests of these answers."""

    def record_replay(self, request: CompletionRequest, result: CompletionResult) -> None: ...


class SegmentRecord(NamedTuple):
    """What the segment of a durable run stores beside its steps.

    Args:
        past: loads the events that earlier segments wrote for a run of the tree.
        postpone: ends the segment, so that another one begins soon.
    """

    writer: SegmentWriter
    past: Callable[[str], Awaitable[Sequence[Event]]]
    postpone: Callable[[], None]


class StepWriter(Protocol):
    """Writes steps to disk, in order: a `SegmentWriter`, or the log of a Task."""

    def step(self, step: JournalStep) -> None:
        """Adds a step to the next transaction."""

    async def flush(self) -> None:
        """Returns when everything added so far is on disk."""


class Waits(Protocol):
    """Asks people: `ApprovalWaits`, or the questions of a Task."""

    def begin(self) -> None:
        """Counts a call as active until `end`."""

    def end(self) -> None: ...

    def calling(self) -> AbstractContextManager[None]: ...

    def suspended_call(self) -> AbstractContextManager[None]: ...

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject: ...


class StepLog:
    """The record of a run or Task, and of the runs nested in it.

    Args:
        run_id, agent: of the run, or the id of the Task and its workflow.
        steps: the steps on disk.
        waiting: asks people.
        accepted_at: the time that the prompts of all its segments show, in seconds since the epoch.
        manifest: the manifest of the agent, with those of the agents that it may call.
        segment: of a durable run: what stores its rows and events. None for a Task, whose nested runs are
            plain.
        is_durable: False for the recording of a plain run, which no process continues.
        inherited: of a fork: the number of the last step of the run that it was forked from. Tools with an
            effect are not called behind it without a person's approval. None for other runs.

    Attributes:
        writes_sessions: whether the runs nested in this one write to their sessions.
        failure: the divergence that was found. The run fails, even if it handles the error.
        suspended: the segment ends, and no step begins any more.
    """

    #: whether the run is made again only to compare it (`durable.replay_check`)
    is_replay = False

    def __init__(  # noqa: PLR0913 (what a journal is opened with)
        self,
        run_id: str,
        agent: str,
        writer: StepWriter,
        waiting: Waits,
        steps: Iterable[JournalStep],
        *,
        accepted_at: float = 0.0,
        manifest: JsonObject | None = None,
        segment: SegmentRecord | None = None,
        inherited: int | None = None,
        is_durable: bool = True,
    ) -> None:
        self.is_durable = is_durable
        self.is_fork, self._inherited = inherited is not None, inherited or 0
        self.writes_sessions = True
        self.run_id, self.agent, self.accepted_at = run_id, agent, accepted_at
        self.manifest: JsonObject = manifest or {}
        self.waiting, self._writer, self._segment = waiting, writer, segment
        steps = tuple(steps)
        self.failure: Divergence | None = None
        self.suspended = False
        self._steps = {(step.path, step.n): step for step in steps}
        self._passed: dict[str, int] = {}
        self._last_ordinal = max((step.ordinal for step in steps), default=0)
        #: what the requests of models are written by
        self.requests = RequestEncoder()
        #: the rules of the agents of the runs in this record, by the place of the run
        self._redactors: dict[str, Redactor | None] = {}
        #: calls that this segment has finished, as they are stored when the run has ended
        self._redacted: list[JournalStep] = []
        #: the nodes of earlier segments: by graph and position, and those that this segment has not reached
        self._positions: dict[tuple[str, int], str] = {}
        self._unreached: set[tuple[str, int]] = set()
        for step in steps:
            if step.kind == "node" and step.output is not None:
                self._unreached.add((step.path, step.n))
                if step.output["position"]:
                    self._positions[step.output["graph"], step.output["position"]] = step.path
        #: active visits of functions that must not be repeated, by path
        self.functions: dict[str, NodeVisit] = {}

    @property
    def segment(self) -> SegmentRecord:
        assert self._segment is not None, "a Task has no segments"
        return self._segment

    @property
    def is_of_run(self) -> bool:
        """Whether it is of a durable run, so that nested runs are stored with it."""
        return self._segment is not None

    def restart(self, path: str) -> None:
        """Begins the work below a path again: its steps are numbered from 1."""
        for known in [one for one in self._passed if _is_below(one, path)]:
            del self._passed[known]

    def number(self, path: str) -> int:
        """Returns the number, in its path, of a step that begins now.

        Raises:
            asyncio.CancelledError: the segment ends.
        """
        if self.suspended:
            raise asyncio.CancelledError
        n = self._passed[path] = self._passed.get(path, 0) + 1
        return n

    def protect(self, place: str, redact: Redactor | None) -> None:
        """Sets the rules that the texts of a run pass once it has ended.

        Args:
            place: of the run in this record.
        """
        self._redactors[place] = redact

    # what a replay compares; see `ReplayLog`

    def check_request(self, path: str, n: int, request: CompletionRequest, redact: Redactor | None) -> None:
        """Compares a request with the recorded one, in a replay."""

    def check_arguments(self, path: str, n: int, call: ToolCall, redact: Redactor | None) -> None: ...

    def check_result(self, path: str, n: int, result: ToolResult, redact: Redactor | None) -> None: ...

    def check_value(self, path: str, output: JsonObject, redact: Redactor | None) -> None: ...

    def check_node(self, step: JournalStep, redact: Redactor | None) -> None: ...

    def is_inherited(self, step: JournalStep) -> bool:
        """Whether a step was made, and paid for, by the run that this one was forked from."""
        return 0 < step.ordinal <= self._inherited

    def edits(self, place: str) -> ForkEdits:
        """Returns what the fork has edited for the run at a place."""
        return ForkEdits(self._steps, place)

    def effect(self, call: ToolCall, redact: Redactor | None) -> JsonObject | None:
        """Returns what a call has returned in the run that this one was forked from, if it was made there."""
        arguments = call.arguments if redact is None else redacted_arguments(call.arguments, redact)
        return recorded_effect(self._steps, call.name, arguments)

    def peek(self, path: str, n: int) -> JournalStep | None:
        """Returns the step of the record, whatever its request was."""
        return self._steps.get((path, n))

    def reach(self, path: str, graph: str | None) -> tuple[int, int]:
        """Returns the number of a visit that begins now, and its position in its graph, 0 for none.

        Raises:
            NondeterministicGraph: the record has another node at this position.
        """
        n, position = self.number(path), 0
        self._unreached.discard((path, n))
        if graph is not None:
            position = self.number(f"{_GRAPH}{graph}")
            recorded = self._positions.get((graph, position), path)
            if recorded != path:
                self.diverge(
                    f"The run cannot be resumed: its graph was changed. It comes to the node {_name(path)!r} "
                    f"where the recorded run came to {_name(recorded)!r}. Start the run again."
                )
        return n, position

    def check_reached(self, path: str) -> None:
        """Raises NondeterministicGraph if the record has nodes below a path that did not run this time."""
        below = (p for p, _ in self._unreached if p.startswith(f"{path}/"))
        # nodes of a run behind a recorded tool call do not run again
        missing = next((p for p in below if _NESTED not in p.removeprefix(path)), None)
        if missing is not None:
            self.diverge(
                f"The run cannot be resumed: its graph was changed. The node {_name(path)!r} has not run "
                f"{_name(missing)!r}, which is recorded. Start the run again."
            )

    def diverge(self, message: str) -> NoReturn:
        self.failure = self.failure or NondeterministicGraph(message)
        raise self.failure

    async def while_active(self) -> None:
        """Returns at once.

        Raises:
            asyncio.CancelledError: the segment ends, also where foreign code has caught its cancellation.
        """
        if self.suspended:
            raise asyncio.CancelledError

    async def decision(
        self, step: JournalStep, question: HumanQuestion, found: JournalStep | None, place: str
    ) -> JsonObject:
        """Returns a person's decision. A function that waits for it begins again when it is there.

        Args:
            place: the path of the node or call that asks.
        """
        if found is not None and found.state == "done":
            return found.output or {}
        around = [v for path, v in self.functions.items() if f"{place}/".startswith(f"{path}/")]
        for visit in around:
            visit.wait()
        answer = await self.waiting.decision(step, question, found)
        for visit in around:
            await visit.resume()
        return answer

    def has_next(self, path: str) -> bool:
        """Whether the record has the step that begins next on this path."""
        return (path, self._passed.get(path, 0) + 1) in self._steps

    def find(self, path: str, n: int, request_hash: str) -> JournalStep | None:
        """Returns the step of the record, or None. Raises: Divergence: it was another request."""
        if self.failure is not None:
            raise self.failure
        step = self._steps.get((path, n))
        if step is not None and step.request_hash not in ("", request_hash):
            self.failure = Divergence(
                f"The run cannot be resumed: step {n} of {path!r} makes a different request than the "
                "recorded one. Start the run again."
            )
            raise self.failure
        return step

    def add(self, step: JournalStep) -> None:
        """Adds a step to the next transaction. One that is done gets its number."""
        if step.state == "done" and not step.ordinal:
            self._last_ordinal += 1
            step = step._replace(ordinal=self._last_ordinal, started_at=step.started_at or time())
        if step.state == "done" and step.kind in CALL_KINDS:
            redact = self._redactors.get(self._place_of(step.path) or "")
            if redact is not None:
                self._redacted.append(redacted(step, redact))
        if self._segment is None and self.is_durable:  # a stage may run a second time in the same process
            self._steps[step.path, step.n] = step
        self._writer.step(step)

    async def write(self, step: JournalStep) -> None:
        """Adds a step and returns when it is on disk, with everything before it."""
        self.add(step)
        await self.flush()

    async def flush(self) -> None:
        """Returns when everything added so far is on disk."""
        await self._writer.flush()

    def below(self, path: str) -> list[JournalStep]:
        """Returns the steps of the record whose work is below a path."""
        return [step for step in self._steps.values() if _is_below(step.path, path)]

    def redact(self) -> None:
        """Replaces raw texts of models and tools by what the rules leave of them: the run has ended.

        The output of a run nested in an earlier segment is deleted if this segment did not come to it: its
        rules are not known here.
        """
        for step in self._steps.values():
            if step.kind in CALL_KINDS and step.state == "done":
                place = self._place_of(step.path)
                if place is None:
                    self._writer.step(step._replace(output=None))
                elif (rules := self._redactors.get(place)) is not None:
                    self._writer.step(redacted(step, rules))
        for step in self._redacted:
            self._writer.step(step)

    def _place_of(self, path: str) -> str | None:
        """Returns the place of the run that has made a step; None if that run is not known."""
        path = path.removeprefix(NODE_PREFIX)
        places = [place for place in self._redactors if path == place or path.startswith(f"{place}/")]
        place = max(places, key=len, default="")
        return None if _NESTED in path[len(place) :] else place


class _NestedRun(NamedTuple):
    """A run that a call or node has started."""

    agent: str
    ledger: RunLedger

    def to_json(self) -> JsonObject:
        return {"agent": self.agent, "spent": self.ledger.to_json()}


class RunJournal:
    """The journal of one run: the accepted one, or one nested in it.

    Args:
        place: the place of this run in the tree of the accepted run; empty for that run itself.
        model: receives the answers that the record gives.
        redact: the output rules of its agent: what steps show has passed them.
    """

    _stream: DurableStream | None = None
    _last_step: int = 0

    def __init__(
        self,
        step_log: StepLog,
        place: str,
        run_id: str,
        model: ReplayListener,
        redact: Redactor | None = None,
    ) -> None:
        self.step_log, self.place, self.run_id, self._model = step_log, place, run_id, model
        self.redact = redact
        self._edits = step_log.edits(place) if step_log.is_fork else None
        step_log.protect(place, redact)
        #: active visits of nodes, by their path in this run
        self.visits: dict[str, NodeVisit] = {}
        #: the runs that active tool calls have started, by the path and id of the call
        self._runs: dict[tuple[str, str], list[_NestedRun]] = {}

    def attach(self, stream: DurableStream) -> None:
        """Sends the events of the run to a stream. Steps are numbered after those in the stream."""
        self._stream, self._last_step = stream, stream.last_step

    def at(self, path: str) -> str:
        return f"{self.place}/{path}" if self.place and path else self.place or path

    def next_step_number(self, step: int) -> int:
        """Returns a number for a model call. No other call of the run has it, before or after a crash."""
        self._last_step = max(self._last_step + 1, step)
        return self._last_step

    def nested(self, path: str, call_id: str, agent: str, ledger: RunLedger) -> tuple[str, str]:
        """Returns place and id of a run that is started here. It has the same ones when it starts again.

        Args:
            ledger: what the run will have spent when the call or node ends that starts it.
        """
        place = f"{self.at(path)}{_NESTED}{agent}:{call_id}"
        run = _NestedRun(agent, ledger)
        if (runs := self._runs.get((path, call_id))) is not None:
            runs.append(run)
        else:
            self._note(path, kind="run", at=path, id=call_id, run=run)
        place = f"{place}#{self.step_log.number(place)}"
        return place, derived_run_id(self.step_log.run_id, place)

    @property
    def suspended(self) -> bool:
        return self.step_log.suspended

    @property
    def is_durable(self) -> bool:
        return self.step_log.is_durable

    @property
    def is_fork(self) -> bool:
        return self.step_log.is_fork

    def effect_of(self, call: ToolCall) -> JsonObject | None:
        return self.step_log.effect(call, self.redact) if self.is_fork else None

    # -- nodes ---------------------------------------------------------------------------------------------

    async def visit(self, path: str, effect: NodeEffect, frame: str | None = None) -> NodeVisit:
        step_log, key = self.step_log, f"{NODE_PREFIX}{self.at(path)}"
        await step_log.while_active()
        graph = None if frame is None else self.at(frame)
        self._note(path.rpartition("/")[0], kind="node", at=path, frame=frame)
        n, position = step_log.reach(key, graph)
        found = step_log.find(key, n, "")
        once = effect not in ("read", "idempotent")
        about = {"graph": graph, "position": position, "once": once}
        visit = NodeVisit(self, path, JournalStep(key, n, "node", "", "intent", about))
        self.visits[path] = visit  # of a finished one, too: its calls are not those of the node around it
        if found is not None and found.state == "done" and not self._makes_again(found, once=once):
            visit.record, visit.ordinal = found.output, found.ordinal
        else:
            await visit.begin(found)
        return visit

    def _makes_again(self, found: JournalStep, *, once: bool) -> bool:
        """Whether a replay executes a finished node: its calls are answered."""
        return self.step_log.is_replay and not once and bool((found.output or {}).get("calls"))

    def repeat(self, scope: Any, call: JsonObject) -> JsonObject | None:
        kind, path = call["kind"], self.at(call["at"])
        if kind == "node":
            key = f"{NODE_PREFIX}{path}"
            n, _ = self.step_log.reach(key, None if call["frame"] is None else self.at(call["frame"]))
            step = self.step_log.find(key, n, "")
            return step.output if step is not None and step.state == "done" else None
        if kind == "run":
            scope.steps[0] = max(scope.steps[0], self._last_step)  # its text has steps of this run
            self._repeat_run(scope, call["id"], call["run"])
        elif kind == "model":
            path = path or _MODEL
            scope.next_step()
            step = self.step_log.peek(path, self.step_log.number(path))
            if step is not None and step.state == "done":
                request = convert(call.get("request", {"messages": ()}), CompletionRequest)
                if "request" in call:
                    self.step_log.requests.note(path, step.n, request)
                self._repeat_model(scope, step, request, call["role"])
        else:
            self.step_log.number(f"{path}/{kind}:{call['id']}".lstrip("/"))
        return None

    def _repeat_run(self, scope: Any, call_id: str, run: JsonObject) -> None:
        """Counts and charges a nested run behind a recorded call or node."""
        self.step_log.number(f"{self.at(scope.path)}{_NESTED}{run['agent']}:{call_id}")
        scope.ledger.spend("nested_runs")
        scope.ledger.add(run["spent"])

    def check_children(self, path: str) -> None:
        self.step_log.check_reached(f"{NODE_PREFIX}{self.at(path)}")

    def diverge(self, message: str) -> NoReturn:
        self.step_log.diverge(message)

    def _note(self, path: str, **call: Any) -> JsonObject:
        """Adds a call to the visit that it is part of, if there is one, and returns the call."""
        while path:
            visit = self.visits.get(path) or self.visits.get(path.partition("#")[0])
            if visit is not None:
                visit.calls.append(call)
                break
            path = path.rpartition("/")[0]
        return call

    # -- any call ------------------------------------------------------------------------------------------

    async def call(
        self,
        path: str,
        request_hash: str,
        name: str,
        make: Callable[[], Awaitable[JsonObject]],
        *,
        once: bool,
        arguments: Any = None,
    ) -> JsonObject:
        path, log = self.at(path), self.step_log
        n = log.number(path)
        found = log.find(path, n, request_hash)
        if found is not None and found.state == "done":
            return found.output or {}
        start = StepStart.now()
        step = JournalStep(path, n, "tool" if once else "value", request_hash, "intent")
        if once:
            asked = (found.output or {}).get("asked", 0) if found is not None else 0
            if found is not None:
                asked += 1
                if not await self._may_repeat(path, name, asked, arguments):
                    raise OutcomeUnknown(_unknown_outcome(f"tool {name!r} was called"))
            await log.write(step._replace(output={"asked": asked} if asked else None))
            failpoints.reach(failpoints.TOOL_INTENT)
        with log.waiting.calling():
            answer = await make()
        await log.write(start.of(step._replace(state="done", output=answer), {"name": name}))
        failpoints.reach(failpoints.TOOL_DONE)
        return answer

    async def ask_whether_again(self, path: str, name: str, number: int) -> None:
        if not await self._may_repeat(self.at(path), name, number):
            raise OutcomeUnknown(_unknown_outcome(f"stage {name!r} ran"))

    async def _may_repeat(self, path: str, name: str, number: int, arguments: Any = None) -> bool:
        """Asks a person: the process died during this work, and its outcome is unknown."""
        step = JournalStep(f"{path}/unknown_outcome", number, "wait", "", "intent")
        question = HumanQuestion("unknown_outcome", name, arguments, agent=self.step_log.agent)
        with self.step_log.waiting.calling():
            found = self.step_log.peek(*step[:2])
            answer = await self.step_log.decision(step, question, found, path)
        return bool(answer["decision"] == "approve")

    def restart(self, path: str) -> None:
        self.step_log.restart(self.at(path))

    def suspend(self) -> None:
        self.step_log.suspended = True

    # -- model calls ---------------------------------------------------------------------------------------

    @property
    def system(self) -> str | None:
        """The system message that the fork has instead of the rendered one."""
        return self._edits.system if self._edits is not None else None

    def edited(self, request: CompletionRequest) -> CompletionRequest:
        return request if self._edits is None else self._edits.apply(request, self.redact)

    async def model(
        self, scope: Any, step: int, request: CompletionRequest, role: str, ask: AskModel
    ) -> CompletionResult:
        path, digest = self.at(scope.path) or _MODEL, call_record.model_hash(request, role)
        n = self.step_log.number(path)
        call = self._note(scope.path, kind="model", at=scope.path, role=role)
        if self._model.keeps_requests:
            call["request"] = to_builtins(request)
        self.step_log.check_request(path, n, request, self.redact)
        found = self.step_log.find(path, n, digest)
        if found is not None and found.state == "done":
            self.step_log.requests.note(path, n, request)
            return self._answer(scope, found, request, role)
        number, start = self._begin(found, step), StepStart.now()
        about = {"name": role, "in": self.step_log.requests.encode(path, n, request, self.redact)}

        def entry(state: StepState, **output: Any) -> JournalStep:
            step = JournalStep(path, n, "model", digest, state, {"step": number, **output})
            return start.of(step, about) if state == "done" else step

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
        self, scope: Any, found: JournalStep, request: CompletionRequest, role: str
    ) -> CompletionResult:
        result = self._repeat_model(scope, found, request, role)
        if result is None:
            raise call_record.error_of((found.output or {})["failure"])
        return result

    def _repeat_model(
        self, scope: Any, found: JournalStep, request: CompletionRequest, role: str
    ) -> CompletionResult | None:
        """Emits and charges a recorded call. Returns its answer, None if it failed."""
        output = found.output or {}
        number = output["step"]
        self._last_step = max(self._last_step, number)
        scope.ledger.spend("model_calls")
        if "failure" in output:
            return None
        result = call_record.completion_of(output["result"])
        if not self.step_log.is_inherited(found):
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
        noted = self._note(scope.path, kind="tool", at=scope.path, id=call.id)
        noted |= {"name": call.name, "arguments": call.arguments}
        if spec is not None and not spec.recorded:
            result = await do(context)
            noted["done"] = True
            return result
        path, digest = f"{self.at(scope.path)}/tool:{call.id}", call_record.tool_hash(call)
        n = self.step_log.number(path)
        self.step_log.check_arguments(path, n, call, self.redact)
        found = self.step_log.find(path, n, digest)
        if found is not None and found.state == "done" and not self._runs_again(found):
            output = dict(found.output or {})
            for run in output.pop("runs", ()):
                self._repeat_run(scope, call.id, run)
            result = call_record.result_of(call, output)
            retell(result)
            noted["done"] = True
            return result
        start = StepStart.now()
        begun = JournalStep(path, n, "tool", digest, "intent")
        if found is None and spec is not None and (effect := self._effect(spec, call)) is not None:
            retell(effect)
            done = begun._replace(state="done", output=call_record.result_to_json(effect))
            self.step_log.add(start.of(done, self._about(call)))
            noted["done"] = True
            return effect
        handle = ToolCallStep(self.step_log, begun, call, found, scope.agent)
        runs = self._runs[scope.path, call.id] = list[_NestedRun]()
        try:
            with self.step_log.waiting.calling():
                result = await do(replace(context, step=handle))
        finally:
            self._runs.pop((scope.path, call.id), None)
        self.step_log.check_result(path, n, result, self.redact)
        output = call_record.result_to_json(result)
        if runs:
            output["runs"] = [run.to_json() for run in runs]
        done = handle.step._replace(state="done", output=output)
        await self.step_log.write(start.of(done, self._about(call)))
        failpoints.reach(failpoints.TOOL_DONE)
        noted["done"] = True
        return result

    def _effect(self, spec: ToolSpec, call: ToolCall) -> ToolResult | None:
        """Returns what a call has returned in the run that this one was forked from."""
        effect = None if spec.effect == "read" else self.effect_of(call)
        return None if effect is None else call_record.result_of(call, effect)

    def _runs_again(self, found: JournalStep) -> bool:
        """Whether a replay makes a finished call again, because it runs an agent."""
        return self.step_log.is_replay and "runs" in (found.output or {})

    def _about(self, call: ToolCall) -> JsonObject:
        arguments = call.arguments
        if self.redact is not None:
            arguments = redacted_arguments(arguments, self.redact)
        return {"name": call.name, "in": arguments}

    # -- people --------------------------------------------------------------------------------------------

    async def person(self, scope: Any, ticket: str, question: HumanQuestion) -> JsonObject:
        path = f"{self.at(scope.path)}/human:{ticket}".lstrip("/")
        node = ticket.rpartition("#")[0]
        self._note(node, kind="human", at=scope.path, id=ticket)
        arguments = call_record.to_plain_json(question.arguments)
        question = question._replace(arguments=arguments, agent=scope.agent)
        return await self._decision(path, question, self.at(node))

    async def identity(self, question: HumanQuestion) -> bool:
        """Asks for the caller's token once more than it was sent so far. Returns False if it is refused."""
        path = self.at("identity")
        while True:
            if (await self._decision(path, question))["decision"] != "approve":
                return False

    async def _decision(self, path: str, question: HumanQuestion, place: str = "") -> JsonObject:
        n = self.step_log.number(path)
        found = self.step_log.find(path, n, "")
        with self.step_log.waiting.calling():  # the work that the question interrupts
            step = JournalStep(path, n, "wait", "", "intent")
            return await self.step_log.decision(step, question, found, place or path)

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
        start, made = StepStart.now(), make()
        self._add_value(name, start, to_json(made))
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
        start = StepStart.now()
        with self.step_log.waiting.calling():
            made = await make()
        self._add_value(name, start, to_json(made))
        return made

    def note(self, name: str, output: JsonObject) -> None:
        """Records a value that the run makes again when it is resumed, so that others can see it.

        Args:
            output: as the rules of the agent leave it.
        """
        path = self.at(name)
        self.step_log.check_value(path, output, self.redact)
        if self.step_log.find(path, 1, "") is None:
            self.step_log.add(JournalStep(path, 1, _VALUE, "", "done", output, about={"name": name}))

    def note_prompt(self, messages: Iterable[Message]) -> None:
        """Records the message array that the run begins with."""
        self.note("prompt", {"messages": [message_json(one, self.redact) for one in messages]})

    def _add_value(self, name: str, start: StepStart, output: JsonObject) -> None:
        step = JournalStep(self.at(name), 1, _VALUE, "", "done", output)
        if name in LISTED_VALUES:
            shown = {} if self.redact is None else {"out": self.redact(output, "output")}
            step = start.of(step, {"name": name, **shown})
        self.step_log.add(step)

    async def require_lease(self) -> None:
        """Returns once the lease has just been confirmed. Call it before each effect that others see.

        Raises:
            Divergence: the run diverged before, and handled that as another error.
        """
        if self.step_log.failure is not None:
            raise self.step_log.failure
        await self.step_log.segment.writer.require_lease()


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
        self.step, self.is_fork = step, step_log.is_fork
        self._step_log, self._call, self._found, self._agent = step_log, call, found, agent
        self._is_begun = False

    async def record_intent(self, spec: ToolSpec) -> None:
        if spec.repeatable:
            return
        if self._found is not None and not (self._found.output or {}).get("waits"):
            await self._ask_whether_again()
        await self._step_log.write(self.step)
        self._is_begun = True
        failpoints.reach(failpoints.TOOL_INTENT)

    async def ask(self, request: HumanQuestion) -> JsonObject:
        path = f"{self.step.path}/{request.kind}"
        n = self._step_log.number(path)
        found = self._step_log.find(path, n, self.step.request_hash)
        waits = self._is_begun and (found is None or found.state != "done")
        if waits:  # the call asks by itself, and begins again with the decision
            self._step_log.add(self.step._replace(output={**(self.step.output or {}), "waits": True}))
        decision = await self._step_log.decision(
            JournalStep(path, n, "wait", self.step.request_hash, "intent"),
            request._replace(agent=self._agent),
            found,
            path,
        )
        if waits:
            await self._step_log.write(self.step)
        return decision

    def has_request(self, kind: str) -> bool:
        return self._step_log.has_next(f"{self.step.path}/{kind}")

    async def _ask_whether_again(self) -> None:
        """Asks a person: the process died during this call, and its outcome is unknown.

        A decision allows one more call: after another death a person is asked again.
        """
        asked = 1 + (((self._found and self._found.output) or {}).get("asked", 0))
        self._step_log.add(self.step._replace(state="unknown", output={"asked": asked - 1}))
        question = HumanQuestion(
            "unknown_outcome", self._call.name, call_record.arguments_of(self._call), agent=self._agent
        )
        path = f"{self.step.path}/unknown_outcome"
        step = JournalStep(path, asked, "wait", self.step.request_hash, "intent")
        answer = await self._step_log.decision(step, question, self._step_log.peek(path, asked), path)
        if answer["decision"] != "approve":
            raise OutcomeUnknown(_unknown_outcome(f"tool {self._call.name!r} was called"))
        self.step = self.step._replace(output={"asked": asked})


def _unknown_outcome(what: str) -> str:
    return f"The server stopped while the {what}. It may have had its effect; it was not repeated."


class NodeVisit:
    """`JournaledNode` of one visit.

    Args:
        path: of the node in its run.
        step: its intent.
    """

    def __init__(self, journal: RunJournal, path: str, step: JournalStep) -> None:
        self.record: JsonObject | None = None
        self.ordinal = 0
        self.refusal: OutcomeUnknown | None = None
        self.calls: list[JsonObject] = []
        self._journal, self._log, self._path, self._step = journal, journal.step_log, path, step
        self._about: JsonObject = step.output or {}
        self._start = StepStart.now()
        self._waits = 0

    async def begin(self, found: JournalStep | None) -> None:
        """Records that the visit begins: on disk, if it must not be repeated."""
        if not self._about["once"]:
            self._log.add(self._step)
            return
        before = (found.output or {}) if found is not None else None
        if before is not None and not before.get("waits"):
            await self._ask_whether_again(before.get("asked", 0))
        if self.refusal is None:
            await self._log.write(self._step)
            failpoints.reach(failpoints.NODE_INTENT)
        self._log.functions[self._step.path.removeprefix(NODE_PREFIX)] = self
        self._log.waiting.begin()

    async def _ask_whether_again(self, asked: int) -> None:
        """Asks a person: the process died during this visit, and its outcome is unknown.

        Args:
            asked: how often a person has allowed to repeat it.
        """
        path, name = f"{self._step.path}/unknown_outcome", self._path.rpartition("/")[2]
        self._log.add(self._step._replace(state="unknown", output={**self._about, "asked": asked}))
        step = JournalStep(path, asked + 1, "wait", "", "intent")
        question, found = (
            HumanQuestion("unknown_outcome", name, agent=self._log.agent),
            self._log.peek(*step[:2]),
        )
        with self._log.waiting.calling():
            answer = await self._log.decision(
                step, question, found, self._step.path.removeprefix(NODE_PREFIX)
            )
        if answer["decision"] == "approve":
            self._about["asked"] = asked + 1
            return
        self.refusal = OutcomeUnknown(_unknown_outcome(f"node {name!r} ran"))

    def wait(self) -> None:
        """Notes that the visit waits for a person: it begins again with the decision."""
        self._waits += 1
        self._log.add(self._step._replace(output={**self._about, "waits": True}))
        self._log.waiting.end()

    async def resume(self) -> None:
        """Goes on after the wait."""
        self._waits -= 1
        self._log.waiting.begin()
        if not self._waits:
            await self._log.write(self._step)

    async def finish(self, record: JsonObject) -> None:
        await self._log.while_active()
        for call in self.calls:
            if call["kind"] == "run":
                call["run"] = call["run"].to_json()
        done = self._step._replace(state="done", output={**self._about, **record, "calls": self.calls})
        done = self._start.of(done, {"name": self._path.rpartition("/")[2]})
        if self._log.is_replay:
            self.leave()
            self._log.check_node(done, self._journal.redact)
            return
        if self._about["once"]:
            await self._log.write(done)
            failpoints.reach(failpoints.NODE_DONE)
        else:
            self._log.add(done)
        self.leave()

    def leave(self) -> None:
        if self._journal.visits.get(self._path) is self:
            del self._journal.visits[self._path]
        if self._log.functions.pop(self._step.path.removeprefix(NODE_PREFIX), None) is not None:
            self._log.waiting.end()


def _is_below(key: str, path: str) -> bool:
    """Whether a step, or the positions of a graph, belong to the work below a path.

    Runs in a stage of a Task itself have an `@` before the path of the stage.
    """
    return key.removeprefix(NODE_PREFIX).removeprefix(_GRAPH).removeprefix("@").startswith(f"{path}/")


def _name(path: str) -> str:
    """Returns the node of a step as messages show it."""
    return path.removeprefix(NODE_PREFIX)


_VALUE: StepKind = "value"
#: values that are steps of a run, by name
LISTED_VALUES = frozenset({"input", "memory", "prompt", "output"})
#: before the path of a node, in the path of its step; the path of calls outside of any node
NODE_PREFIX, _MODEL = "node:", "model"
#: before the path of a graph that counts its visits
_GRAPH = "graph:"
#: in a path, before the place of a nested run
_NESTED = "/run:"


def _emit_again(scope: Any, step: int, role: str, result: CompletionResult) -> None:
    """Emits the events of a recorded model call. The stream drops those that listeners have received."""
    emit = scope.events.emit
    emit("model.started", step=step, role=role)
    if scope.events.streaming and result.content:
        emit(MODEL_DELTA, step=step, role=role, content=result.content)
    emit(
        "model.finished",
        step=step,
        role=role,
        provider=result.provider,
        model=result.model,
        usage=result.usage.to_json(),
        attempts=list(result.attempts),
        duration_ms=0.0,
        tool_calls=len(result.tool_calls),
        finish_reason=result.finish_reason,
        recorded=True,
    )
