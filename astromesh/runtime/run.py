"""One run in flight: its scope, and what the pipeline notes about it on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from astromesh.abc.clock import ms_since
from astromesh.abc.durable import Policy
from astromesh.core.checked_data import checked_data
from astromesh.core.guardrails import Released, StreamGate
from astromesh.core.model_router import ModelRouter
from astromesh.errors import UpstreamError
from astromesh.growing import GrowingText
from astromesh.node.calls import ASSISTANT
from astromesh.node.ledger import RunLedger
from astromesh.node.scope import Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.captured import Captured
from astromesh.runtime.journal import RunJournal
from astromesh.telemetry.runs import RunLog
from astromesh.telemetry.stream import DELTA, Stream
from astromesh.tokens import estimate_request
from astromesh.types import (
    BrokeOff,
    CallerContext,
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    SessionKey,
    blamed,
)  # fmt: skip

ANONYMOUS = "anonymous"


class _Voice:
    """One model call whose text leaves through a gate."""

    __slots__ = ("gate", "raw", "role")

    def __init__(self, gate: StreamGate, role: str, *, changed: bool) -> None:
        self.gate = gate
        self.role = role
        # without rules what was said is what leaves
        self.raw = GrowingText() if changed else None

    def said(self) -> str:
        return self.gate.released.text if self.raw is None else self.raw.getvalue()


class GatedEvents:
    """The run's emitter: lets model text out only when no output rule can change it any more (R10).

    What the model asks of tools is text of its own, too: events show it as the rules leave it.

    With `stream: final` it asks no model to stream; step 10 sends the released text as one delta.

    `partial` is what the running step has released so far; `last` the newest finished step of the run's own
    voice: its whole text as the model said it, and what left of it.
    """

    __slots__ = ("_agent", "_ledger", "_partial", "_stream", "_voices", "asked", "last")

    def __init__(self, stream: Stream, agent: Agent, ledger: RunLedger) -> None:
        self._stream = stream
        self._agent = agent
        self._ledger = ledger
        self._voices: dict[int, _Voice] = {}
        #: what the newest streaming call asks; rules that count tokens count its prompt
        self.asked: CompletionRequest | None = None
        self._partial: GrowingText | None = None
        self.last: tuple[str, Released] | None = None

    @property
    def streaming(self) -> bool:
        """Whether models are to stream; a listener that comes later makes the next call stream."""
        return self._stream.streaming and self._agent.stream != "final"

    @property
    def partial(self) -> str:
        return self._partial.getvalue() if self._partial is not None else ""

    def emit(self, type: str, /, **data: Any) -> None:
        if type == DELTA:
            self._delta(data)
            return
        if type == "model.finished":
            self._finish(data)
        elif type == "model.started" and data["role"] == ASSISTANT:
            self.begin()
        elif type == "tool.started" and self._agent.guardrails.output_rules:
            data["arguments"] = checked_data(self._agent.guardrails, data["arguments"])
        self._stream.emit(type, **data)

    def begin(self) -> None:
        """A new step of the run's own voice begins: what the last one said is not the answer."""
        self._partial = None
        self.last = None

    def end(self, step: int, output_tokens: int) -> None:
        """A step that no model call of this run said has ended: what is held back of it may leave."""
        self._finish({"step": step, "usage": {"output_tokens": output_tokens}})

    def withdraw(self, step: int) -> bool:
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
            voice = self._voices[step] = _Voice(gate, data["role"], changed=rules)
        if voice.raw is not None:
            voice.raw.write(content)
        self._send(step, voice.role, voice.gate.feed(content))

    def _spent_before(self) -> int:
        """Tokens of the turn before this call's answer: a number that only output rules want."""
        if self.asked is None or not self._agent.guardrails.output_rules:
            return 0
        return self._ledger.usage.total_tokens + estimate_request(self.asked)

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
            self.last = (voice.said(), voice.gate.released)

    def _send(self, step: int, role: str, text: str) -> None:
        if text:
            if role == ASSISTANT:
                if self._partial is None:
                    self._partial = GrowingText()
                self._partial.write(text)
            self._stream.emit(DELTA, step=step, role=role, content=text)


class RunModel:
    """The model seam of one run: the agent's router, sharing the run's retry budget, noting who answered.

    Args:
        schema: the agent's output schema, or None.

    `attempts` has one line for each failed try of the whole run, `{provider, error, status}`.
    """

    __slots__ = ("_router", "_said", "_schema", "_scope", "attempts", "last")

    def __init__(self, router: ModelRouter, scope: Scope, schema: Mapping[str, Any] | None = None) -> None:
        self._router = router
        self._schema = schema
        self._scope = scope
        self.attempts: list[JsonObject] = []
        self.last: CompletionResult | None = None
        #: texts that calls ended with, and what had been asked; only kept where there is a schema
        self._said: dict[str, CompletionRequest] = {}

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        request = self._shaped(request)
        try:
            result = await self._router.route(request, take_retry=self._scope.take_retry)
        except UpstreamError as error:
            self._failed(error)
            raise
        return self._answered(request, result)

    async def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | BrokeOff | CompletionResult]:
        request = self._shaped(request)
        if isinstance(self._scope.events, GatedEvents):
            self._scope.events.asked = request
        try:
            async with aclosing(self._router.stream(request, take_retry=self._scope.take_retry)) as pieces:
                async for piece in pieces:
                    yield self._answered(request, piece) if isinstance(piece, CompletionResult) else piece
        except UpstreamError as error:
            self._failed(error)
            raise

    def replayed(self, request: CompletionRequest, result: CompletionResult) -> None:
        """What a model answered before this run was taken up again."""
        self._answered(self._shaped(request), result)

    def asked_for(self, text: str) -> CompletionRequest | None:
        """The call that ended with a text, as the model was asked; None where no call of the run did."""
        return self._said.get(text)

    def _answered(self, request: CompletionRequest, result: CompletionResult) -> CompletionResult:
        self.last = result
        if self._schema is not None and not result.tool_calls:
            self._said[result.content] = request
        if result.attempts:
            self.attempts += result.attempts
        return result

    def _failed(self, error: UpstreamError) -> None:
        self.attempts += blamed(error)

    def _shaped(self, request: CompletionRequest) -> CompletionRequest:
        """Asks for the agent's output schema where the answer may come and nothing else is asked for."""
        if self._schema is None or request.role or request.output_schema is not None or not request.answers:
            return request
        return replace(request, output_schema=self._schema)


class Fence(Protocol):
    """What a run holds in its session: `token` of the lease, 0 where there is none.

    `look`, where there is one, ends the run if it should not be answered any more.
    """

    @property
    def token(self) -> int: ...

    @property
    def look(self) -> Callable[[], Awaitable[None]] | None: ...


class _NoSeat:
    token = 0
    look = None


NO_SEAT = _NoSeat()


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
        asked_at: of a durable run: when it was accepted, in seconds since the epoch; else 0.
        suspended: the segment of a durable run ends, and not the run: nothing is said, nothing kept.
        said: of a durable run taken up again: what its newest step has said before.
        captured: keeps what is said for its trace, where `telemetry.capture_content` asks for it.
    """

    scope: Scope
    stream: Stream
    log: RunLog
    events: GatedEvents
    model: RunModel
    key: SessionKey
    owner: str
    any_owner: bool = False
    caller: CallerContext | None = None
    parent: str = ""
    admitted: str = ""
    remembered: bool = False
    seat: Fence = NO_SEAT
    policy: Policy | None = None
    asked_at: float = 0.0
    suspended: bool = False
    journal: RunJournal | None = None
    said: str = ""
    captured: Captured | None = None
    started: float = field(default_factory=perf_counter)

    @property
    def id(self) -> str:
        return self.scope.run_id

    @property
    def rests(self) -> bool:
        """Its segment ends, or that of the durable run it is part of, and not the run."""
        book = self.journal.book if self.parent and self.journal is not None else None
        return self.suspended or (book is not None and book.suspended)

    @property
    def trace_id(self) -> str:
        return self.scope.trace_id

    def elapsed_ms(self) -> float:
        return ms_since(self.started)
