"""The record of a durable run: it answers finished steps and stores new ones.

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

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from msgspec import convert, structs, to_builtins

from astromesh.durable import failpoints
from astromesh.durable.base import JournalStep, StepKind, StepState
from astromesh.durable.event_stream import DurableStream
from astromesh.durable.recording import (
    Redactor,
    StepStart,
    message_json,
    redacted_arguments,
)
from astromesh.durable.step_log import NESTED_MARK, NODE_PREFIX, StepLog
from astromesh.errors import OutcomeUnknown, StoreError, UpstreamError
from astromesh.graph import call_record
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import AskModel, CallTool, NodeEffect, ReplayTool
from astromesh.telemetry.events import MODEL_DELTA
from astromesh.telemetry.ids import derived_run_id
from astromesh.tools.base import HumanQuestion, ToolPort
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
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


class NestedRun(NamedTuple):
    """A run that a call or node has started.

    Args:
        ledger: what the run will have spent when that call or node ends.
        citations: what its answer will cite then.
    """

    agent: str
    ledger: RunLedger
    citations: list[JsonObject]

    def to_json(self) -> JsonObject:
        cited = {"citations": self.citations} if self.citations else {}
        return {"agent": self.agent, "spent": self.ledger.to_json(), **cited}


class RunJournal:
    """The journal of one run: the accepted one, or one nested in it.

    Args:
        place: the place of this run in the tree of the accepted run; empty for that run itself.
        model: receives the answers that the record gives.
        redact: the output rules of its agent: what steps show has passed them.
    """

    _stream: DurableStream | None = None
    _last_step: int = 0
    #: of the attachments of its request, as base64 text by hash: the record has hashes alone
    contents: Mapping[str, str] = MappingProxyType({})

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
        self._runs: dict[tuple[str, str], list[NestedRun]] = {}

    def attach(self, stream: DurableStream) -> None:
        """Sends the events of the run to a stream. Steps are numbered after those in the stream."""
        self._stream, self._last_step = stream, stream.last_step

    def at(self, path: str) -> str:
        return f"{self.place}/{path}" if self.place and path else self.place or path

    def next_step_number(self, step: int) -> int:
        """Returns a number for a model call. No other call of the run has it, before or after a crash."""
        self._last_step = max(self._last_step + 1, step)
        return self._last_step

    def nested(self, path: str, call_id: str, run: NestedRun) -> tuple[str, str]:
        """Returns place and id of a run that is started here. It has the same ones when it starts again."""
        place = f"{self.at(path)}{NESTED_MARK}{run.agent}:{call_id}"
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

    def values(self, path: str) -> tuple[JsonObject, ...]:
        return self.step_log.values(self.at(path))

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
        if found is not None and (dropped := (found.output or {}).get("dropped")) is not None:
            visit.dropped = dropped
        elif found is not None and found.state == "done" and not self._makes_again(found, once=once):
            visit.record, visit.ordinal = found.output, found.ordinal
        else:
            await visit.begin(found)
        return visit

    def drop(self, path: str) -> None:
        visit = self.visits.get(path)
        if visit is not None:
            visit.drop()
            return
        key = f"{NODE_PREFIX}{self.at(path)}"  # it has not begun
        about: JsonObject = {"graph": None, "position": 0, "once": False, "dropped": []}
        self.step_log.add(JournalStep(key, self.step_log.next_number(key), "node", "", "intent", about))

    def _makes_again(self, found: JournalStep, *, once: bool) -> bool:
        """Whether a replay executes a finished node: its calls are answered. One that was edited stays."""
        record = found.output or {}
        return self.step_log.is_replay and not once and "edge" in record and bool(record.get("calls"))

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
                request = self._request_of(call)
                if "request" in call:
                    self.step_log.requests.note(path, step.n, request)
                self._repeat_model(scope, step, request, call["role"])
        else:
            self.step_log.number(f"{path}/{kind}:{call['id']}".lstrip("/"))
        return None

    def _request_of(self, call: JsonObject) -> CompletionRequest:
        request = convert(call.get("request", {"messages": ()}), CompletionRequest)
        messages = call_record.messages_with_contents(request.messages, self.contents)
        return structs.replace(request, messages=messages)

    def _repeat_run(self, scope: Any, call_id: str, run: JsonObject) -> None:
        """Counts, charges and cites a nested run behind a recorded call or node."""
        self.step_log.number(f"{self.at(scope.path)}{NESTED_MARK}{run['agent']}:{call_id}")
        scope.ledger.spend("nested_runs")
        scope.ledger.add(run["spent"])
        scope.nested_citations.extend(run.get("citations", ()))

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
        question_count = (found.output or {}).get("asked", 0) if found is not None else 0
        if once and found is not None:
            question_count += 1
            if not await self._may_repeat(path, name, question_count, arguments):
                raise OutcomeUnknown(_unknown_outcome(f"tool {name!r} was called"))
        with log.waiting.calling():
            if once:
                await log.write(step._replace(output={"asked": question_count} if question_count else None))
                failpoints.reach(failpoints.TOOL_INTENT)
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
            messages = [*map(call_record.message_to_json, request.messages)]
            call["request"] = {**to_builtins(structs.replace(request, messages=())), "messages": messages}
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
        intent = JournalStep(path, n, "tool", digest, "intent")
        if found is None and spec is not None and (effect := self._effect(spec, call)) is not None:
            retell(effect)
            done = intent._replace(state="done", output=call_record.result_to_json(effect))
            self.step_log.add(start.of(done, self._about(call)))
            noted["done"] = True
            return effect
        handle = ToolCallStep(self.step_log, intent, call, found, scope.agent)
        runs = self._runs[scope.path, call.id] = list[NestedRun]()
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
        rules: Sequence[str] = (),
    ) -> T:
        """Does what `value` does, for a value that needs no await.

        Args:
            rules: types of the rules that have checked it, in order.
        """
        path = self.at(name)
        found = self.step_log.find(path, 1, "")
        if found is not None and found.output is not None:
            return of_json(found.output)
        start, made = StepStart.now(), make()
        self._add_value(name, start, to_json(made), rules)
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
        start, recalled = StepStart.now(), self.step_log.recalled(path)
        if recalled is not None:
            made = of_json(recalled)
        else:
            with self.step_log.waiting.calling():
                made = await make()
        self._add_value(name, start, to_json(made))
        return made

    def note(self, name: str, output: JsonObject, rules: Sequence[str] = ()) -> None:
        """Records a value that the run makes again when it is resumed, so that others can see it.

        Args:
            output: as the rules of the agent leave it.
            rules: as of `once`.
        """
        path = self.at(name)
        self.step_log.check_value(path, output, self.redact)
        if self.step_log.find(path, 1, "") is None:
            about = {"name": name, **({"rules": list(rules)} if rules else {})}
            self.step_log.add(JournalStep(path, 1, _VALUE, "", "done", output, about=about))

    def note_prompt(self, messages: Iterable[Message]) -> None:
        """Records the message array that the run begins with."""
        self.note("prompt", {"messages": [message_json(one, self.redact) for one in messages]})

    def _add_value(self, name: str, start: StepStart, output: JsonObject, rules: Sequence[str] = ()) -> None:
        step = JournalStep(self.at(name), 1, _VALUE, "", "done", output)
        if name in LISTED_VALUES:
            visible = {} if self.redact is None else {"out": self.redact(output, "output")}
            visible |= {"rules": list(rules)} if rules else {}
            step = start.of(step, {"name": name, **visible})
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
        path = self._question_path(request.kind)
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
        return self._step_log.has_next(self._question_path(kind))

    def _question_path(self, kind: str) -> str:
        """Returns the path of questions. A later call with the same id of a model has its own."""
        n = self.step.n
        return f"{self.step.path}/{kind}" if n == 1 else f"{self.step.path}#{n}/{kind}"

    async def _ask_whether_again(self) -> None:
        """Asks a person: the process died during this call, and its outcome is unknown.

        A decision allows one more call: after another death a person is asked again.
        """
        question_count = 1 + (((self._found and self._found.output) or {}).get("asked", 0))
        self._step_log.add(self.step._replace(state="unknown", output={"asked": question_count - 1}))
        question = HumanQuestion(
            "unknown_outcome", self._call.name, call_record.arguments_of(self._call), agent=self._agent
        )
        path = self._question_path("unknown_outcome")
        step = JournalStep(path, question_count, "wait", self.step.request_hash, "intent")
        answer = await self._step_log.decision(
            step, question, self._step_log.peek(path, question_count), path
        )
        if answer["decision"] != "approve":
            raise OutcomeUnknown(_unknown_outcome(f"tool {self._call.name!r} was called"))
        self.step = self.step._replace(output={"asked": question_count})


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
        self.dropped: Sequence[JsonObject] | None = None
        self.calls: list[JsonObject] = []
        self._journal, self._log, self._path, self._step = journal, journal.step_log, path, step
        self._about: JsonObject = step.output or {}
        self._start = StepStart.now()
        self._after = journal.step_log.last_ordinal
        self._waits = 0
        self._is_finished = False

    async def begin(self, found: JournalStep | None) -> None:
        """Records that the visit begins: on disk, if it must not be repeated."""
        if not self._about["once"]:
            self._log.add(self._step)
            return
        before = (found.output or {}) if found is not None else None
        if before is not None and not before.get("waits"):
            await self._ask_whether_again(before.get("asked", 0))
        self._log.functions[self._step.path.removeprefix(NODE_PREFIX)] = self
        self._log.waiting.begin()  # before the intent: a branch that waits meanwhile must not end the segment
        if self.refusal is not None:
            return
        is_written = False
        try:
            await self._log.write(self._step)
            is_written = True
        finally:
            if not is_written:
                self.leave()
        failpoints.reach(failpoints.NODE_INTENT)

    async def _ask_whether_again(self, question_count: int) -> None:
        """Asks a person: the process died during this visit, and its outcome is unknown.

        Args:
            asked: how often a person has allowed to repeat it.
        """
        path, name = f"{self._step.path}/unknown_outcome", self._path.rpartition("/")[2]
        self._log.add(self._step._replace(state="unknown", output={**self._about, "asked": question_count}))
        step = JournalStep(path, question_count + 1, "wait", "", "intent")
        question, found = (
            HumanQuestion("unknown_outcome", name, agent=self._log.agent),
            self._log.peek(*step[:2]),
        )
        with self._log.waiting.calling():
            answer = await self._log.decision(
                step, question, found, self._step.path.removeprefix(NODE_PREFIX)
            )
        if answer["decision"] == "approve":
            self._about["asked"] = question_count + 1
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

    def drop(self) -> None:
        """Records that the visit is cancelled, and does not begin again, unless it has ended."""
        if not self._is_finished:
            output = {**self._about, "dropped": self._calls_json()}
            self._log.add(self._step._replace(output=output))

    def _calls_json(self) -> list[JsonObject]:
        for call in self.calls:
            if call["kind"] == "run" and not isinstance(call["run"], dict):
                call["run"] = call["run"].to_json()
        return self.calls

    async def finish(self, record: JsonObject) -> None:
        await self._log.while_active()
        self._calls_json()
        self._is_finished = True
        done = self._step._replace(state="done", output={**self._about, **record, "calls": self.calls})
        done = self._start.of(done, {"name": self._path.rpartition("/")[2], "after": self._after})
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


_VALUE: StepKind = "value"
#: values that are steps of a run, by name
LISTED_VALUES = frozenset({"input", "memory", "prompt", "output"})
#: the path of model calls outside of any node
_MODEL = "model"


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
