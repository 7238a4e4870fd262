"""One run in flight: its scope, its events behind the output rules, and what the pipeline notes about it.

A nested run has its rows and events in the durable run above it, and its text may be the text of that run.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from astromesh.config.runtime import Recording as RecordingKeys
from astromesh.core.guardrails import CheckedText, StreamGate, filter_data
from astromesh.core.model_router import RunModel
from astromesh.durable.approvals import NoWaits
from astromesh.durable.base import ConcurrencyPolicy, RunRow
from astromesh.durable.budgets import BudgetAccount, Budgets
from astromesh.durable.event_stream import DurableStream
from astromesh.durable.journal import NestedRun, RunJournal
from astromesh.durable.recording import MemorySteps, Recording
from astromesh.durable.run_registry import row_of
from astromesh.durable.serialization import PLACE, caller_to_json, contents_of, ended_request
from astromesh.durable.step_log import StepLog
from astromesh.durable.writer import SegmentWriter
from astromesh.errors import Interrupted
from astromesh.graph.audibility import AnswerSteps
from astromesh.graph.calls import ASSISTANT
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import MAX_ANSWER_BYTES, Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.charges import Accounts, ChargedModel
from astromesh.runtime.content_capture import ContentCapture, redactor_of
from astromesh.runtime.records import RunAnswer, RunRequest, attachments_of, contents_by_hash, request_to_json
from astromesh.runtime.request_checks import raises_limit
from astromesh.runtime.sessions import AcceptedRun, SessionLock
from astromesh.telemetry import ids
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import (
    COMMENTARY,
    MODEL_DELTA,
    TERMINAL_EVENTS,
    EventSink,
    EventStream,
    ListenableStream,
    ms_since,
)
from astromesh.telemetry.run_log import RunLog
from astromesh.text import TextBuffer
from astromesh.tokens import estimate_request
from astromesh.tools.base import NestedRunOptions, ToolContext
from astromesh.types import CallerContext, Event, JsonObject, SessionKey

#: node errors in the metadata of a run; its events have all of them
_MAX_NODE_ERRORS = 20
#: nodes in the metadata of a run
_MAX_NODES = 200
#: what tells repetitions of one node apart: the index of an item, the number of a concurrent call
_REPETITION = re.compile(r"\[\d+\](?=/|$)|#\d+(?=/|$)")


#: what listeners have of a run that begins
NOTHING_SENT: Mapping[int, str] = MappingProxyType({})


class _GatedCall:
    """One model call whose text leaves through a gate."""

    __slots__ = ("gate", "raw", "role")

    def __init__(self, gate: StreamGate, role: str, *, has_rules: bool) -> None:
        self.gate = gate
        self.role = role
        #: what the model said; without rules that is what leaves
        self.raw = TextBuffer() if has_rules else None

    def sent_text(self) -> str:
        return self.gate.released.text

    def end(self) -> tuple[str, CheckedText]:
        """Returns the text as the model said it, and the result of the rules."""
        released = self.gate.released
        return released.text if self.raw is None else self.raw.getvalue(), released


class GatedEvents:
    """The emitter of a run: releases model text once no output rule can change it any more.

    The arguments that a model writes for a tool are its text, too: events show them as the rules leave them.

    With `stream: final`, models do not stream; step 10 sends the released text as one delta.

    Args:
        sent: The text by step that listeners of a resumed run have, as far as it may be the answer.

    Attributes:
        answer_steps: The steps whose text listeners have. None while they have none.
        last: The newest finished step of the run's own voice: its text as the model said it, and the result
            of the rules. None before, and while a step is under way.
        node_errors: The first failures of nodes, as events show them.
        nodes: Executions and seconds of the nodes that have ended, by path. Items of a node count together.
    """

    __slots__ = (
        "_agent", "_calls", "_ledger", "_model", "_sent", "_stream", "answer_steps", "last",
        "node_errors", "nodes",
    )  # fmt: skip

    def __init__(
        self,
        stream: ListenableStream,
        agent: Agent,
        ledger: RunLedger,
        model: RunModel,
        sent: Mapping[int, str] = NOTHING_SENT,
    ) -> None:
        self._stream = stream
        self._agent = agent
        self._ledger = ledger
        self._model = model
        self._calls: dict[int, _GatedCall] = {}
        self._sent = sent
        self.answer_steps: AnswerSteps | None = None
        for step, text in sent.items():
            self._add_step(step, partial(str, text))
        self.last: tuple[str, CheckedText] | None = None
        self.node_errors: tuple[JsonObject, ...] = ()
        self.nodes: dict[str, tuple[int, float]] = {}

    @property
    def streaming(self) -> bool:
        """Whether models are to stream. A listener that joins later makes the next call stream."""
        return self._stream.streaming and self._agent.stream != "final"

    @property
    def partial(self) -> str:
        """The text of the newest step that listeners have so far, and that may still be the answer."""
        return self.answer_steps.newest_text if self.answer_steps is not None else ""

    def emit(self, type: str, /, **data: Any) -> None:
        if type == MODEL_DELTA:  # one Python call for each token, and the gate's
            call = self._calls.get(data["step"]) or self._open_call(data["step"], data["role"])
            if call.raw is not None:
                call.raw.write(data["content"])
            data["content"] = text = call.gate.feed(data["content"])
            if not text:
                return
        elif type == "model.finished":
            self._finish(data)
            return
        elif type == "model.started" and data["role"] == ASSISTANT:
            self.begin(data["step"])
        elif type == "tool.started" and self._agent.guardrails.output_rules:
            data["arguments"] = filter_data(self._agent.guardrails, data["arguments"], "tool_argument")
        elif type == "node.updated" and self._agent.guardrails.output_rules:
            data["update"] = filter_data(self._agent.guardrails, data["update"])
        elif type == "node.finished":
            self._note_node(data["node"], data["duration_ms"])
        elif type == "node.failed":
            self._note_error(data)
        self._stream.emit(type, **data)

    @property
    def nodes_visited(self) -> list[JsonObject]:
        """The nodes for metadata, in the order in which they first ended."""
        return [
            {"node": node, "times": times, "seconds": round(ms / 1000, 6)}
            for node, (times, ms) in self.nodes.items()
        ]

    def _note_node(self, path: str, duration_ms: float) -> None:
        if path[-1] == "]" or "]/" in path or "#" in path:
            path = _REPETITION.sub("", path)
        times, ms = self.nodes.get(path, (0, 0.0))
        if times or len(self.nodes) < _MAX_NODES:
            self.nodes[path] = times + 1, ms + duration_ms

    def _note_error(self, data: JsonObject) -> None:
        """Adds a node error to those of the run. Its message may quote a model or a tool."""
        rules = self._agent.guardrails
        if rules.output_rules:
            data["message"] = rules.filter_text(data["message"], "output")
        if len(self.node_errors) < _MAX_NODE_ERRORS:
            self.node_errors = (*self.node_errors, data)

    def begin(self, step: int) -> None:
        """Begins a step of the run's own voice: the text of the step before is not the answer."""
        self.last = None
        if self.answer_steps is not None:
            self.answer_steps.begin(step)

    def begin_forwarded(self, step: int) -> None:
        """Begins a step of a nested run. What listeners had of it before a crash is void."""
        if step in self._sent and isinstance(self._stream, DurableStream):
            self._stream.restart_step(step)

    def _finish(self, data: JsonObject) -> None:
        """Ends a step. Text beside tool calls is not the answer."""
        if self._calls:
            self.end(data["step"], data["usage"]["output_tokens"])
        self._stream.emit("model.finished", **data)
        if data["tool_calls"] and data["role"] == ASSISTANT:
            self.set_aside(data["step"])

    def set_aside(self, step: int) -> None:
        """Tells listeners that the text of the newest step of the run's own voice is not the answer."""
        self.last = None
        if self.answer_steps is not None:
            self.answer_steps.set_aside(step)

    def settle(self, answer: str) -> bool:
        """Tells listeners what text that they have is not the answer. Returns whether a step has it."""
        return self.answer_steps is not None and self.answer_steps.settle(answer)

    def send_answer(self, step: int, text: str) -> None:
        """Sends a checked answer that no step has sent."""
        self._add_step(step, partial(str, text))
        self._stream.emit(MODEL_DELTA, step=step, role=ASSISTANT, content=text)

    def end(self, step: int, output_tokens: int) -> None:
        """Ends a step: the text that the rules still hold back may leave."""
        call = self._calls.pop(step, None)
        if call is None:
            return
        used = self._ledger.usage.total_tokens
        if rest := call.gate.finish(tokens_used=used, output_tokens=output_tokens):
            self._stream.emit(MODEL_DELTA, step=step, role=call.role, content=rest)
        if call.role == ASSISTANT:
            self.last = call.end()

    def retract(self, step: int) -> bool:
        """Discards a broken answer so that another one may begin. Returns False if some of it has left."""
        call = self._calls.get(step)
        if call is not None and call.gate.released.text:
            return False
        self._calls.pop(step, None)
        if self.answer_steps is not None:
            self.answer_steps.forget(step)
        return True

    def _open_call(self, step: int, role: str) -> _GatedCall:
        rules = self._agent.guardrails
        gate = rules.gate(self._agent.stream, tokens_used=self._tokens_before())
        call = self._calls[step] = _GatedCall(gate, role, has_rules=bool(rules.output_rules))
        if role == ASSISTANT:
            self._add_step(step, call.sent_text)
        return call

    def _add_step(self, step: int, text: Callable[[], str]) -> None:
        if self.answer_steps is None:
            self.answer_steps = AnswerSteps(self._stream.emit)
        self.answer_steps.add(step, text)

    def _tokens_before(self) -> int:
        """Returns the tokens of the turn before this call's answer; only output rules need the number."""
        request = self._model.streaming_request
        if request is None or not self._agent.guardrails.output_rules:
            return 0
        return self._ledger.usage.total_tokens + estimate_request(request)


class Run(Struct):
    """One run in flight.

    Args:
        id: The id of the run.
        stream: The listeners' side of the events. Patterns emit to `scope.events`, the gated side.
        log: The record of the run in this process.
        owner: The id of the principal that the session belongs to.
        parent: `RUN.CALL` of the tool call that this run is nested in, or empty.
        admitted_query: The query after the input rules, set by step 3.
        admitted_request: The request of a durable run as it is stored; from step 3 on without raw texts.
        persisted: Whether step 11 has begun.
        lock: The lock of the session, if the store of its turns has leases.
        policy: How a segment of a durable run enters its session, which has admitted the run before. None in
            every other run.
        accepted: When such a run was accepted.
        suspended: Whether the segment ends and the run does not: nothing more is emitted or stored.
        journal: The record of a durable run, and of every run nested in one.
        content_recorder: Stores content for the trace if `telemetry.capture_content` is set.
        accounts: The stored budgets that the run is charged to, if there are any.
        budget_ends: The `clock.monotonic()` at which a budget of `wall_seconds` is used up. None without.
        time_account: The stored account of that budget. None: `budgets.per_run`.
        link: The page of the run in the console; empty without a console.
    """

    id: str
    trace_id: str
    scope: Scope
    stream: ListenableStream
    log: RunLog
    events: GatedEvents
    model: RunModel
    key: SessionKey
    owner: str
    caller: CallerContext | None = None
    parent: str = ""
    admitted_query: str = ""
    admitted_request: JsonObject | None = None
    persisted: bool = False
    lock: SessionLock | None = None
    policy: ConcurrencyPolicy | None = None
    accepted: AcceptedRun | None = None
    suspended: bool = False
    journal: RunJournal | None = None
    content_recorder: ContentCapture | None = None
    accounts: Accounts | None = None
    budget_ends: float | None = None
    time_account: BudgetAccount | None = None
    link: str = ""
    started: float = field(default_factory=perf_counter)

    @property
    def prompt_time(self) -> float:
        """The time that prompts show, in seconds since the epoch.

        A durable run shows when it was accepted, so that each of its segments makes the same prompt.
        """
        accepted_at = self.journal.step_log.accepted_at if self.journal is not None else 0.0
        return accepted_at or self.scope.clock.now()

    @property
    def is_in_durable_run(self) -> bool:
        """Whether it is nested in a durable run, which stores its row and events."""
        return bool(self.parent) and self.journal is not None and self.journal.step_log.is_of_run

    @property
    def is_durable(self) -> bool:
        """Whether it is, or is nested in, a run that is continued if its process dies."""
        return self.journal is not None and self.journal.is_durable

    @property
    def leaves_session(self) -> bool:
        """Whether it is, or is nested in, a fork that reads its session and does not write to it."""
        return self.journal is not None and not self.journal.step_log.writes_sessions

    @property
    def is_suspended(self) -> bool:
        """Whether its segment, or the segment of the durable run above it, ends without ending the run."""
        step_log = self.journal.step_log if self.parent and self.journal is not None else None
        return self.suspended or (step_log is not None and step_log.suspended)

    @property
    def lease_token(self) -> int:
        """The fencing token of the session's lease; 0 without a lease."""
        return self.lock.token if self.lock is not None else 0

    def elapsed_ms(self) -> float:
        return ms_since(self.started)

    def use_stream(self, stream: DurableStream, agent: Agent) -> None:
        """Makes the events of a durable run, or of one nested in it, go to disk first."""
        assert self.journal is not None
        self.stream = self.log.stream = stream
        self.events = self.scope.events = GatedEvents(
            stream, agent, self.scope.ledger, self.model, stream.sent_text()
        )
        self.journal.attach(stream)

    def interrupted_error(self) -> Interrupted:
        error = Interrupted("The run was cancelled.")
        error.run_id, error.trace_id = self.id, self.trace_id
        return error


#: who starts a run if nobody says so
NO_CALLER = CallerContext()
#: executes a run: the pipeline, or a wrapper around it
Handler = Callable[[Agent, RunRequest, Run], Awaitable[RunAnswer]]


def _deps_of(agent: Agent, request: RunRequest, outer: Scope | None) -> Any:
    """Returns what tools find as `ToolContext.deps`: of the request, of the agent, or of the run above."""
    own = agent.live.deps if request.deps is None else request.deps
    return outer.deps if own is None and outer is not None else own


class RunFactory:
    """Makes the `Run` of a request.

    Attributes:
        run_links: What stands before the id of a run in its link to the console; empty without a console.
        captures_content: Whether traces hold requests and answers (`telemetry.capture_content`).
        max_answer_bytes: The limit of an answer (`limits.max_answer_bytes`).
    """

    def __init__(self, clock: Clock, metrics: EventSink, budgets: Budgets) -> None:
        self._clock, self._metrics, self._budgets = clock, metrics, budgets
        self.captures_content = False
        self.run_links = ""
        self.max_answer_bytes = MAX_ANSWER_BYTES

    def new_run(  # noqa: PLR0913, PLR0915 (what a run is made of)
        self,
        agent: Agent,
        request: RunRequest,
        caller: CallerContext | None,
        sinks: tuple[EventSink, ...] = (),
        trace_id: str = "",
        parent: ToolContext | None = None,
        run_id: str = "",
    ) -> Run:
        """Returns a run that has not started.

        Args:
            sinks: Listeners to its events, in addition to the metrics.
            trace_id: The trace that it belongs to. Empty: the caller's, or a new one.
            parent: The tool call that it is nested in.
            run_id: Empty for a new one. A run nested in a durable run has an id of its place in that run.
        """
        caused = request.caused_by
        run_id, trace_id = run_id or ids.new_id("run_"), trace_id or caused.trace_id or ids.trace_id()
        tenant, owner = (caller or NO_CALLER).principal
        session = SessionKey(tenant, agent.name, request.session_id, owner)
        above = f"{parent.run_id}.{parent.call_id}" if parent else ""
        outer: Scope | None = parent.run if parent else None
        record: RunJournal | None = outer.journal if outer else None  # type: ignore[assignment]
        ledger = RunLedger(agent.budget, outer.ledger if outer else None)
        place, citations = "", list[JsonObject]()
        if record is not None and parent is not None:
            about = NestedRun(agent.name, ledger, citations)
            place, run_id = record.nested(parent.path, parent.call_id, about)
        scope = Scope(
            run_id,
            agent=agent.name,
            session=session,
            caller=caller,
            trace_id=trace_id,
            ledger=ledger,
            clock=self._clock,
            deadline=parent.deadline if parent else None,
            depth=outer.depth + 1 if outer else 0,
        )
        shared = scope.common  # past the attributes of the scope: each of them costs a call
        shared.citations = citations
        if outer:
            shared.retries, shared.uncancelled, shared.untrusted = (
                outer.retries,
                outer.uncancelled,
                outer.untrusted,
            )
        if agent.memory.episodic is not None or agent.knowledge_tools:
            shared.tool_records = []
        schema = agent.output_schema.json_schema if agent.output_schema else None
        accounts: Accounts | None = outer.accounts if outer else None  # type: ignore[assignment]
        if agent.limits or accounts is not None:
            shared.accounts = accounts = Accounts(self._budgets, agent, scope, owner, accounts)
            model: RunModel = ChargedModel(agent.router, scope, schema, request.parameters, accounts)
        else:
            model = RunModel(agent.router, scope, schema, request.parameters)
        metadata = request.metadata and agent.guardrails.visible_metadata(request.metadata)
        tags = request.tags and agent.guardrails.visible_tags(request.tags)
        log = RunLog(
            run_id, trace_id, tenant, owner, agent.name, request.session_id, above, ledger, model.attempts,
            metadata=metadata, tags=tags, remote_span=caused.span_id,
        )  # fmt: skip
        shared.deps, shared.metadata, shared.tags = _deps_of(agent, request, outer), log.metadata, log.tags
        shared.max_answer_bytes, shared.tool_choice = self.max_answer_bytes, request.client_tools.choice
        shared.tells_state = request.tells_state and agent.pattern_name == "graph"
        model.raises_limit = bool(request.parameters) and raises_limit(agent)
        if (sampled := caused.sampled if outer is None else outer.sampled) is not None:
            log.sampled = shared.sampled = sampled
        log.stream = stream = EventStream(run_id, (self._metrics, *sinks), log)
        shared.events = events = GatedEvents(stream, agent, ledger, model)
        run = Run(
            run_id, trace_id, scope, stream, log, events, model, session, owner, caller, above,
            accounts=accounts, link=self.run_links and self.run_links + run_id,
        )  # fmt: skip
        if agent.guardrails.output_rules:
            shared.visible_name = partial(agent.guardrails.filter_text, place="tool_argument")
        if self.captures_content:
            run.content_recorder = shared.capture = ContentCapture(scope, agent.guardrails)
        if record is not None:
            log.durable = record.step_log.is_of_run
            run.journal = scope.journal = RunJournal(
                record.step_log, place, run_id, model, redactor_of(agent)
            )
            run.journal.contents = contents_by_hash(request)
        return run

    def resumed_run(self, agent: Agent, request: RunRequest, caller: CallerContext, row: RunRow) -> Run:
        """Returns a durable run as this process begins a segment of it."""
        run = self.new_run(agent, request, caller, trace_id=row.trace_id, run_id=row.run_id)
        run.key, run.owner = SessionKey(row.tenant, row.agent, row.session_id, row.owner), row.owner
        interrupts = agent.manifest.spec.sessions.concurrency == "interrupt" and not request.not_before
        run.policy = "interrupt" if interrupts else "enqueue"
        run.admitted_request = row.request
        run.accepted = AcceptedRun(row.run_id, row.request.get(PLACE, 0), row.segment > 1)
        run.log.durable = True
        return run


# -- recordings of plain runs ------------------------------------------------------------------------------


class PlainRecorder:
    """Records plain runs.

    Args:
        keys: of `runtime.yaml`.
        by_default: whether it records where `runtime.yaml` does not say.
    """

    def __init__(self, keys: RecordingKeys, *, by_default: bool = False) -> None:
        is_explicit = "enabled" in keys.model_fields_set
        self._keys, self._is_enabled = keys, keys.enabled if is_explicit else by_default

    def begin(self, agent: Agent, run: Run) -> MemorySteps | None:
        """Makes the calls of a run pass through a journal, if its agent is recorded."""
        recording = agent.manifest.spec.recording
        if not (self._is_enabled if recording is None else recording) or run.journal is not None:
            return None
        steps = MemorySteps(self._keys.max_bytes)
        log = StepLog(
            run.id,
            agent.name,
            steps,
            NoWaits(),
            (),
            accepted_at=run.scope.clock.now(),
            manifest=agent.snapshot,
            is_durable=False,
        )
        run.journal = run.scope.journal = RunJournal(log, "", run.id, run.model, redactor_of(agent))
        return steps

    def end(self, agent: Agent, request: RunRequest, run: Run, steps: MemorySteps) -> Recording | None:
        """Returns the recording of a run that has ended. None: it is too long, or was not admitted."""
        assert run.journal is not None
        run.journal.step_log.redact()
        if not run.admitted_query or not steps.steps:
            return None
        admitted = run.admitted_request or request_to_json(request, run.admitted_query)
        stored = {**ended_request(admitted, run.admitted_query), "accepted_at": run.prompt_time}
        caller = caller_to_json(run.caller or CallerContext())
        contents = contents_of(attachments_of(request))
        return Recording(steps.steps, stored, agent.snapshot, caller, contents)


#: how deep agents may call agents, and how many such calls the whole tree of one run may make
MAX_DEPTH, MAX_NESTED_RUNS = 8, 256


class _NestedWriter:
    """The writer of the top run, whose segment continues after the last event of the nested run."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer = writer

    @property
    def closed(self) -> bool:
        return self._writer.closed

    def event(self, event: Event, *, last: bool = False) -> None:
        self._writer.event(event)


async def begin_nested_run(
    run: Run, agent: Agent, own: Iterable[EventSink], again: Iterable[EventSink]
) -> None:
    """Makes the events of a run nested in a durable run go to disk from here on.

    Args:
        own: Listeners that receive new events only.
        again: Listeners that receive every event, those of an earlier segment included.
    """
    assert run.journal is not None
    step_log, log = run.journal.step_log, run.log
    past = await step_log.segment.past(run.id)
    run.use_stream(
        DurableStream(run.id, _NestedWriter(step_log.segment.writer), log, own, past, again), agent
    )
    step_log.segment.writer.nested(
        RunRow(
            log.run_id, log.tenant, log.owner, log.agent, log.session_id, log.trace_id, "running",
            run.scope.clock.now(), log.parent, worker=step_log.run_id,
        )
    )  # fmt: skip


def end_nested_run(run: Run) -> None:
    """Writes the row of a nested run that has ended, with its last event."""
    assert run.journal is not None
    if run.log.events and run.log.events[-1].type in TERMINAL_EVENTS:
        step_log = run.journal.step_log
        step_log.segment.writer.nested(replace(row_of(run.log), worker=step_log.run_id))


# -- the text of a nested run as the text of the outer one (swarm) -------------------------------------------
#
# Only text passes, through the output rules of the outer run. Model calls, tools and their cost stay events
# of the nested run, so that nothing is counted twice.

#: a text that begins with one of these may be data that callers should not see
_DATA_PREFIXES = ("{", "`")


def forward_events(outer: Scope, terms: NestedRunOptions) -> tuple[ForwardedEvents, ...]:
    """Returns the listeners of a nested run: one if its text is the outer run's and that one streams."""
    events = outer.events
    if not terms.streams_to_caller or not isinstance(events, GatedEvents) or not events.streaming:
        return ()
    return (ForwardedEvents(outer, events, terms.is_withheld),)


class ForwardedEvents:
    """A listener that emits the text of a nested run as that of the outer run.

    Args:
        outer: The scope of the outer run, which numbers the steps.
        events: The emitter of the outer run.
        withheld: Returns whether a whole step that looks like data does not leave.
    """

    wants_deltas = True

    def __init__(self, outer: Scope, events: GatedEvents, withheld: Callable[[str], bool] | None) -> None:
        self._outer, self._events, self._withheld = outer, events, withheld
        #: number of the step under way, in the outer run; 0 between steps
        self._step = 0
        #: number of the newest step, in the nested run and in the outer one, and its text
        self._newest = (0, 0)
        self._text = TextBuffer()
        #: text beside tool calls that no other step has followed: the nested run may end with it
        self._aside = ""
        #: text that may be data; None if all text passes
        self._held_text: list[str] | None = None

    def send(self, event: Event) -> None:
        data = event.data
        if event.type == MODEL_DELTA and data["role"] == ASSISTANT:
            self._add_text(data["step"], data["content"])
        elif event.type == "model.started" and data["role"] == ASSISTANT:
            self._begin_step()
        elif event.type == "model.finished" and data["role"] == ASSISTANT:
            self._end_step(data["usage"]["output_tokens"])
        elif event.type == COMMENTARY and data["step"] == self._newest[0]:
            self._aside = self._text.getvalue()
            self._events.set_aside(self._newest[1])
        elif event.type == "run.completed":
            self._end_step(0)

    def _begin_step(self) -> None:
        self._events.begin(self._outer.steps[0] + 1)
        self._step, self._aside = 0, ""

    def _add_text(self, step: int, text: str) -> None:
        if not self._step and text == self._aside:
            return
        if not self._step:
            self._text = TextBuffer()
            self._step = self._outer.next_step()
            self._newest = (step, self._step)
            self._events.begin_forwarded(self._step)
            self._held_text = None if self._withheld is None else []
        if self._held_text is None:
            self._emit_text(text)
            return
        self._held_text.append(text)
        start = "".join(self._held_text).lstrip()
        if start and not start.startswith(_DATA_PREFIXES):
            self._release_text()

    def _release_text(self) -> None:
        texts, self._held_text = self._held_text, None
        if texts:
            self._emit_text("".join(texts))

    def _emit_text(self, text: str) -> None:
        self._text.write(text)
        self._events.emit(MODEL_DELTA, step=self._step, role=ASSISTANT, content=text)

    def _end_step(self, output_tokens: int) -> None:
        if not self._step:
            return
        if self._held_text and not (self._withheld and self._withheld("".join(self._held_text))):
            self._release_text()
        self._events.end(self._step, output_tokens)
        self._step, self._held_text = 0, None
