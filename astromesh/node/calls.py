"""Model calls and tool calls of a run, with their events and their place in the ledger. They exist once.

Role `assistant` is the run's own voice: its deltas may become token frames. Other roles (planner, judge,
worker, critic) are calls that a pattern makes for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import orjson

from astromesh.abc.clock import ms_since
from astromesh.abc.events import Emitter, Withholding
from astromesh.abc.provider import ModelPort
from astromesh.abc.tool import ToolContext, ToolPort
from astromesh.errors import AstromeshError, BudgetExhausted, ProviderUnavailable
from astromesh.node.ledger import MODEL_KEYS, RunLedger
from astromesh.node.runner import together
from astromesh.node.scope import NO_EVENTS, Scope, Told
from astromesh.tokens import estimate_request, of_bytes, size_of
from astromesh.types import (
    BrokeOff,
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    ToolCall,
    ToolResult,
    Usage,
    blamed,
    charge,
    charged,
)

ASSISTANT = "assistant"
#: tool calls of one turn of the model that run at once, and that are made at all
AT_ONCE, MOST_CALLS = 16, 128
#: characters that are shown of a name that a model makes up; no tool of ours has more
_LONGEST_NAME = 64
_TOO_MANY = f"A turn may call at most {MOST_CALLS} tools; this call was not made."
_NO_MORE_CALLS = "The run's budget of tool calls is used up. Answer with what you have."


async def call_model(
    scope: Scope,
    model: ModelPort,
    request: CompletionRequest,
    *,
    role: str = ASSISTANT,
    shown: Callable[[CompletionResult], str] | None = None,
) -> CompletionResult:
    """One model call: reserved in the ledger, streamed where somebody listens, its usage booked.

    A call that breaks off is booked too: what the provider had reported, else an estimate.

    Args:
        shown: what listeners may see of the answer; they get it as one delta, once the answer is whole.

    Raises:
        BudgetExhausted: before the call, when tokens, cost or model calls are used up.
        AllProvidersFailed, ProviderError: from the model.
    """
    ledger = scope.ledger
    step = scope.next_step()
    if scope.events is NO_EVENTS:
        return await ask_model(ledger, model, request)
    if (journal := scope.journal) is not None:
        ask = partial(_ask_heard, scope, model, request, role, shown)
        return await journal.model(scope, step, request, role, ask)
    return await _ask_heard(scope, model, request, role, shown, step)


async def _ask_heard(
    scope: Scope,
    model: ModelPort,
    request: CompletionRequest,
    role: str,
    shown: Callable[[CompletionResult], str] | None,
    step: int,
) -> CompletionResult:
    ledger, events = scope.ledger, scope.events
    first: float | None = None
    _reserve(ledger)
    events.emit("model.started", step=step, role=role, tools=len(request.tools))
    started = perf_counter()
    try:
        if events.streaming:
            result, first = await _streamed(scope, model, request, step, role, shown)
        else:
            result = await _whole(ledger, model, request)
    except BaseException as error:
        _broken(scope, step, role, error, started)
        if scope.capture is not None:
            scope.capture.model(step, request, None)
        raise
    ledger.add_usage(result.usage)
    _finished(events, step, role, result, first)
    if scope.capture is not None:
        scope.capture.model(step, request, result)
    return result


class Payer(Protocol):
    """Whoever counts for itself what its calls cost, beside the ledger."""

    def book(self, usage: Usage) -> None: ...


async def ask_model(
    ledger: RunLedger, model: ModelPort, request: CompletionRequest, payer: Payer | None = None
) -> CompletionResult:
    """One model call that nobody is told of: reserved in the ledger, its usage booked as in `call_model`.

    Raises:
        BudgetExhausted: before the call, when tokens, cost or model calls are used up.
        AllProvidersFailed, ProviderError: from the model.
    """
    _reserve(ledger)
    try:
        result = await model.complete(request)
    except BaseException as error:
        _book_broken(ledger, error, request)
        raise
    ledger.add_usage(result.usage)
    if payer is not None:
        payer.book(result.usage)
    return result


async def _whole(ledger: RunLedger, model: ModelPort, request: CompletionRequest) -> CompletionResult:
    try:
        return await model.complete(request)
    except BaseException as error:
        _book_broken(ledger, error, request)
        raise


def _book_broken(ledger: RunLedger, error: BaseException, request: CompletionRequest, said: int = 0) -> None:
    """What a call without a result has cost: what its provider knows of it, else an estimate.

    A call that failed before it said anything was refused, or never arrived: it costs nothing. One that was
    cancelled was heard.

    Args:
        said: bytes of text that came.
    """
    usage = charged(error)
    if usage is None and (said or isinstance(error, asyncio.CancelledError)):
        usage = Usage(estimate_request(request), of_bytes(said), estimated=True)
        charge(error, usage)
    if usage is not None:
        ledger.add_usage(usage)


def _broken(scope: Scope, step: int, role: str, error: BaseException, started: float) -> None:
    """Tells of a call without a result: who was asked, how each failed, and what it has cost.

    What ends a segment of a durable run ends no call: it is made again.
    """
    if scope.journal is not None and isinstance(error, asyncio.CancelledError):
        return
    attempts = list(blamed(error))
    provider, _, model = (attempts[-1]["provider"] if attempts else "").partition("/")
    scope.events.emit(
        "model.failed",
        step=step,
        role=role,
        provider=provider,
        model=model,
        error=_code_of(error),
        usage=(charged(error) or Usage()).to_json(),
        attempts=attempts,
        duration_ms=ms_since(started),
    )


def _code_of(error: BaseException) -> str:
    if isinstance(error, AstromeshError):
        return error.code
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "internal"


def _reserve(ledger: RunLedger) -> None:
    if ledger.parent is None and not ledger.caps:  # nothing to be exhausted
        ledger.used["model_calls"] = ledger.used.get("model_calls", 0) + 1
        return
    if key := ledger.exhausted(MODEL_KEYS):
        raise BudgetExhausted(f"The run's budget of {key} is used up.")
    ledger.spend("model_calls")


def _finished(
    events: Emitter, step: int, role: str, result: CompletionResult, first_ms: float | None
) -> None:
    streamed = {} if first_ms is None else {"first_token_ms": first_ms}
    events.emit(
        "model.finished",
        step=step,
        role=role,
        provider=result.provider,
        model=result.model,
        usage=result.usage.to_json(),
        attempts=list(result.attempts),
        duration_ms=round(result.latency_ms, 3),
        tool_calls=len(result.tool_calls),
        **streamed,
    )


async def _streamed(
    scope: Scope,
    model: ModelPort,
    request: CompletionRequest,
    step: int,
    role: str,
    shown: Callable[[CompletionResult], str] | None,
) -> tuple[CompletionResult, float | None]:
    """The result, and the milliseconds to the first delta, None where there was none."""
    result: CompletionResult | None = None
    emit, said = scope.events.emit, 0
    started, first = perf_counter(), None
    try:
        async with aclosing(model.stream(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, BrokeOff):
                    if shown is not None or _withdrawn(scope.events, step):
                        piece.unheard, first = True, None
                    continue
                if not isinstance(piece, Delta):
                    result = piece
                    continue
                if first is None:
                    first = ms_since(started)
                said += size_of(piece.content)
                if shown is None:
                    emit("model.delta", step=step, role=role, content=piece.content)
        if result is None:
            raise ProviderUnavailable("The model's stream ended without a result.")
    except BaseException as error:
        _book_broken(scope.ledger, error, request, said)
        raise
    if shown is not None and (content := shown(result)):
        emit("model.delta", step=step, role=role, content=content)
    return result, first


def _withdrawn(events: Emitter, step: int) -> bool:
    return isinstance(events, Withholding) and events.withdraw(step)


async def call_tools(
    scope: Scope, calls: Sequence[ToolCall], make: Callable[[ToolCall], Coroutine[Any, Any, ToolResult]]
) -> list[ToolResult]:
    """All calls of one model turn, together when there are several; one result per call, in their order.

    `AT_ONCE` of them run at a time. What a turn asks for beyond `MOST_CALLS` is refused.

    Args:
        make: makes one call.
    """
    asked = calls[:MOST_CALLS]
    done = await together([*map(make, asked)] if len(asked) <= AT_ONCE else _in_turns(asked, make))
    scope.note_untrusted(result.name for result in done if result.untrusted)
    refused = [ToolResult(c.id, c.name, _TOO_MANY, False, "too_many_calls") for c in calls[MOST_CALLS:]]
    return [*done, *refused] if refused else done


def _in_turns(
    calls: Sequence[ToolCall], make: Callable[[ToolCall], Coroutine[Any, Any, ToolResult]]
) -> list[Coroutine[Any, Any, ToolResult]]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(call: ToolCall) -> ToolResult:
        async with turn:
            return await make(call)

    return [in_turn(call) for call in calls]


async def call_tool(scope: Scope, tools: ToolPort, call: ToolCall) -> ToolResult:
    """One tool call with its events. A failed tool is a result with `ok=False`, never an exception."""
    if (journal := scope.journal) is not None:
        do, retell = partial(_do, scope, tools, call), partial(_retell, scope, tools, call)
        return await journal.tool(scope, tools, call, do, retell)
    return await _do(scope, tools, call, scope.tool_context(call.id, call.name))


async def _do(scope: Scope, tools: ToolPort, call: ToolCall, context: ToolContext) -> ToolResult:
    emit, name = scope.events.emit, _name(scope, tools, call)
    emit("tool.started", id=call.id, name=name, arguments=_readable(call.arguments))
    scope.tools_called.append(name)
    started = perf_counter()
    if scope.ledger.try_spend("tool_calls"):
        result = await tools.execute(call, context)
    else:
        result = ToolResult(call.id, call.name, _NO_MORE_CALLS, False, "budget_exhausted")
    duration = ms_since(started)
    emit("tool.finished", id=call.id, name=name, ok=result.ok, duration_ms=duration, **_marks(result))
    if scope.capture is not None:
        scope.capture.tool(call, result)
    if scope.tools_told is not None:
        scope.tools_told.append(Told(name, call, result.ok, result.content))
    return result


def _retell(scope: Scope, tools: ToolPort, call: ToolCall, result: ToolResult) -> None:
    """Books what a call did that a durable run made before it was taken up again."""
    name = _name(scope, tools, call)
    scope.events.emit("tool.started", id=call.id, name=name, arguments=_readable(call.arguments))
    scope.tools_called.append(name)
    scope.ledger.spend("tool_calls")
    scope.events.emit("tool.finished", id=call.id, name=name, ok=result.ok, **_marks(result))
    if scope.tools_told is not None:
        scope.tools_told.append(Told(name, call, result.ok, result.content))


def _name(scope: Scope, tools: ToolPort, call: ToolCall) -> str:
    """As others see it: what is the name of no tool is a text of the model's own, however long."""
    name = call.name
    if scope.shown is None and len(name) <= _LONGEST_NAME:
        return name
    if any(spec.name == name for spec in tools.specs()):
        return name
    return (name if scope.shown is None else scope.shown(name))[:_LONGEST_NAME]


def _marks(result: ToolResult) -> JsonObject:
    marks: JsonObject = {} if result.ok else {"error": result.error}
    if result.untrusted:
        marks["untrusted"] = True
    return marks


def _readable(arguments: str) -> object:
    try:
        return orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return arguments
