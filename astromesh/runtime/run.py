"""One run in flight: its scope, and what the pipeline notes about it on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from astromesh.core.guardrails import OutputResult, StreamGate, filter_data
from astromesh.core.model_router import RunModel
from astromesh.durable.base import ConcurrencyPolicy
from astromesh.durable.journal import RunJournal
from astromesh.errors import Interrupted
from astromesh.graph.calls import ASSISTANT
from astromesh.graph.ledger import RunLedger
from astromesh.graph.scope import Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.content_capture import ContentCapture
from astromesh.telemetry.events import MODEL_DELTA, ListenableStream, ms_since
from astromesh.telemetry.run_log import RunLog
from astromesh.text import TextBuffer
from astromesh.tokens import estimate_request
from astromesh.types import (
    CallerContext,
    SessionKey,
)


class _GatedCall:
    """One model call whose text leaves through a gate."""

    __slots__ = ("gate", "raw", "role")

    def __init__(self, gate: StreamGate, role: str, *, changed: bool) -> None:
        self.gate = gate
        self.role = role
        # without rules what was said is what leaves
        self.raw = TextBuffer() if changed else None

    def text(self) -> str:
        return self.gate.released.text if self.raw is None else self.raw.getvalue()


class GatedEvents:
    """The run's emitter: lets model text out only when no output rule can change it any more (R10).

    What the model asks of tools is text of its own, too: events show it as the rules leave it.

    With `stream: final` it asks no model to stream; step 10 sends the released text as one delta.

    `partial` is what the running step has released so far; `last` the newest finished step of the run's own
    voice: its whole text as the model said it, and what left of it.
    """

    __slots__ = ("_agent", "_ledger", "_model", "_partial", "_stream", "_voices", "last")

    def __init__(self, stream: ListenableStream, agent: Agent, ledger: RunLedger, model: RunModel) -> None:
        self._stream = stream
        self._agent = agent
        self._ledger = ledger
        self._voices: dict[int, _GatedCall] = {}
        self._model = model
        self._partial: TextBuffer | None = None
        self.last: tuple[str, OutputResult] | None = None

    @property
    def streaming(self) -> bool:
        """Whether models are to stream; a listener that comes later makes the next call stream."""
        return self._stream.streaming and self._agent.stream != "final"

    @property
    def partial(self) -> str:
        return self._partial.getvalue() if self._partial is not None else ""

    def emit(self, type: str, /, **data: Any) -> None:
        if type == MODEL_DELTA:
            self._delta(data)
            return
        if type == "model.finished":
            self._finish(data)
        elif type == "model.started" and data["role"] == ASSISTANT:
            self.begin()
        elif type == "tool.started" and self._agent.guardrails.output_rules:
            data["arguments"] = filter_data(self._agent.guardrails, data["arguments"], "tool_argument")
        self._stream.emit(type, **data)

    def begin(self) -> None:
        """A new step of the run's own voice begins: what the last one said is not the answer."""
        self._partial = None
        self.last = None

    def end(self, step: int, output_tokens: int) -> None:
        """A step that no model call of this run said has ended: what is held back of it may leave."""
        self._finish({"step": step, "usage": {"output_tokens": output_tokens}})

    def retract(self, step: int) -> bool:
        """A broken answer of which all is held back is forgotten, so that another one may begin."""
        voice = self._voices.get(step)
        if voice is not None and voice.gate.released.text:
            return False
        self._voices.pop(step, None)
        return True

    def _delta(self, data: dict[str, Any]) -> None:
        step, content = data["step"], data["content"]
        voice = self._voices.get(step)
        if voice is None:
            gate = self._agent.guardrails.gate(self._agent.stream, tokens_used=self._spent_before())
            rules = bool(self._agent.guardrails.output_rules)
            voice = self._voices[step] = _GatedCall(gate, data["role"], changed=rules)
        if voice.raw is not None:
            voice.raw.write(content)
        self._send(step, voice.role, voice.gate.feed(content))

    def _spent_before(self) -> int:
        """Tokens of the turn before this call's answer: a number that only output rules want."""
        request = self._model.streaming_request
        if request is None or not self._agent.guardrails.output_rules:
            return 0
        return self._ledger.usage.total_tokens + estimate_request(request)

    def _finish(self, data: dict[str, Any]) -> None:
        step, usage = data["step"], data["usage"]
        voice = self._voices.pop(step, None)
        if voice is None:
            return
        used = self._ledger.usage.total_tokens
        self._send(
            step, voice.role, voice.gate.finish(tokens_used=used, output_tokens=usage["output_tokens"])
        )
        if voice.role == ASSISTANT:
            self.last = (voice.text(), voice.gate.released)

    def _send(self, step: int, role: str, text: str) -> None:
        if text:
            if role == ASSISTANT:
                if self._partial is None:
                    self._partial = TextBuffer()
                self._partial.write(text)
            self._stream.emit(MODEL_DELTA, step=step, role=role, content=text)


class SessionHold(Protocol):
    """What a run holds in its session: `token` of the lease, 0 where there is none.

    `look`, where there is one, ends the run if it should not be answered any more.
    """

    @property
    def token(self) -> int: ...

    @property
    def check_newest(self) -> Callable[[], Awaitable[None]] | None: ...


class _NoHold:
    token = 0
    check_newest = None


NO_HOLD = _NoHold()


@dataclass(slots=True)
class Run:
    """One run in flight.

    Args:
        stream: the listeners' side of the events; `scope.events` is the gated side that the pattern emits to.
        log: its record among the runs of this process.
        owner: id of the principal that the session belongs to: the caller, until step 4 finds another one.
        admitted: the query after the input rules, once step 3 is done.
        remembered: step 11 has begun.
        seat: its place in the session.
        policy: how an accepted run comes into its session, which has let it in before; else empty.
        any_owner: the caller may use sessions of others (scope `sessions:any`).
        journal: of a durable run, and of what is nested in it: the record.
        accepted_at: of a durable run: when it was accepted, in seconds since the epoch; else 0.
        suspended: the segment of a durable run ends, and not the run: nothing is said, nothing kept.
        said: of a durable run taken up again: what its newest step has said before.
        captured: keeps what is said for its trace, where `telemetry.capture_content` asks for it.
    """

    scope: Scope
    stream: ListenableStream
    log: RunLog
    events: GatedEvents
    model: RunModel
    key: SessionKey
    owner: str
    any_owner: bool = False
    caller: CallerContext | None = None
    parent: str = ""
    admitted_query: str = ""
    persisted: bool = False
    session_hold: SessionHold = NO_HOLD
    policy: ConcurrencyPolicy | None = None
    accepted_at: float = 0.0
    suspended: bool = False
    journal: RunJournal | None = None
    replayed_text: str = ""
    content_recorder: ContentCapture | None = None
    started: float = field(default_factory=perf_counter)

    @property
    def id(self) -> str:
        return self.scope.run_id

    @property
    def is_suspended(self) -> bool:
        """Its segment ends, or that of the durable run it is part of, and not the run."""
        book = self.journal.step_log if self.parent and self.journal is not None else None
        return self.suspended or (book is not None and book.suspended)

    @property
    def trace_id(self) -> str:
        return self.scope.trace_id

    def elapsed_ms(self) -> float:
        return ms_since(self.started)


def interrupted_error(run: Run) -> Interrupted:
    error = Interrupted("The run was cancelled.")
    error.run_id, error.trace_id = run.id, run.trace_id
    return error
