"""Model calls and tool calls of a run, with their events and charges. No other module makes them.

The role `assistant` writes the answer of the run: its deltas may become token frames. Other roles (planner,
judge, worker, critic) are calls that a pattern makes for itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import orjson

from astromesh.errors import (
    AnswerTooLong,
    AstromeshError,
    ConfigError,
    InvalidToolCall,
    ProviderRejected,
    ProviderUnavailable,
)
from astromesh.graph.active_node import enter_tool, leave
from astromesh.graph.ledger import OPEN_CALL, OpenCall, RunLedger, bounds_of, limited
from astromesh.graph.runner import together
from astromesh.graph.scope import NO_EVENTS, Journal, Scope, ToolCallRecord
from astromesh.providers.base import ModelPort
from astromesh.telemetry.events import Emitter, RetractableEmitter, ms_since
from astromesh.tokens import estimate_request, estimate_size, utf8_size
from astromesh.tools.base import ToolContext, ToolPort
from astromesh.tools.results import failed_result, unknown_tool
from astromesh.tools.toolbox import ToolBox
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    Message,
    StreamBroken,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    attach_usage,
    attached_attempts,
    attached_usage,
)

ASSISTANT = "assistant"
#: The tool calls of one model turn that run concurrently, and that are made at all.
MAX_CONCURRENT_CALLS, MAX_CALLS = 16, 128
#: The characters that are shown of a name made up by a model. No tool of ours has a longer name.
_MAX_NAME = 64
_TOO_MANY_CALLS = f"A turn may call at most {MAX_CALLS} tools; this call was not made."
_NO_MORE_CALLS = "The run's budget of tool calls is used up. Answer with what you have."


#: Receives the usage of a successful model call, beside the ledger.
AddUsage: TypeAlias = Callable[[Usage], None]


def call_model(
    scope: Scope,
    model: ModelPort,
    request: CompletionRequest,
    *,
    role: str = ASSISTANT,
    visible_text: Callable[[CompletionResult], str] | None = None,
    add_usage: AddUsage | None = None,
) -> Coroutine[Any, Any, CompletionResult]:
    """Makes one model call: reserves it in the ledger, streams it to listeners, charges its usage.

    Under a cap of tokens or cost the request limits its answer to what is left (`graph.ledger`).

    A call that fails is charged, too, with what the provider has reported, else with an estimate.

    Args:
        visible_text: Returns the part of the answer that listeners may see. They receive it as one delta when
            the answer is complete.
        add_usage: Receives the usage of a successful call.

    Raises:
        BudgetExhausted: Tokens, cost or model calls are used up. The call is not made.
        AllProvidersFailed, ProviderError: The model failed.
    """
    step = scope.next_step()
    if scope.events is NO_EVENTS:
        return call_model_silently(scope.ledger, model, request, add_usage)
    call = _ModelCall(scope, model, request, role, visible_text, add_usage)
    return call.make(step) if scope.journal is None else call.make_once(step, scope.journal)


class _ModelCall(NamedTuple):
    """A model call that listeners see."""

    scope: Scope
    model: ModelPort
    request: CompletionRequest
    role: str
    visible_text: Callable[[CompletionResult], str] | None
    add_usage: AddUsage | None

    async def make_once(self, step: int, journal: Journal) -> CompletionResult:
        """Makes the call unless the journal of a durable run holds its result."""
        call = self._replace(request=journal.edited(self.request), add_usage=None)
        result = await journal.model(self.scope, step, call.request, self.role, call.make)
        if self.add_usage is not None:
            self.add_usage(result.usage)
        return result

    async def make(self, step: int) -> CompletionResult:
        scope, model, request, role, _, add_usage = self
        ledger, events = scope.ledger, scope.events
        received: list[int] = []
        opened: OpenCall | None = None
        if ledger.limits_calls:
            opened, request = await _open(ledger, model, request)
        else:
            ledger.reserve_model_call()
        events.emit("model.started", step=step, role=role, tools=len(request.tools), **_place_of(scope))
        started = perf_counter()
        try:
            if events.streaming:
                result, first_ms = await self._stream(request, step, received)
            else:
                result, first_ms = await model.complete(request), None
        except BaseException as error:
            _charge_failed(ledger, opened, error, request, received)
            _emit_failed(scope, step, role, error, started)
            if scope.capture is not None:
                scope.capture.model(step, request, None)
            raise
        else:
            _charge(ledger, opened, result.usage)
        finally:
            if opened is not None:
                _close(opened)
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
            finish_reason=result.finish_reason,
            **({"response_model": result.response_model} if result.response_model else {}),
            **({} if first_ms is None else {"first_token_ms": first_ms}),
            **_place_of(scope),
        )
        if scope.capture is not None:
            scope.capture.model(step, request, result)
        if add_usage is not None:
            add_usage(result.usage)
        scope.check_answer(result.content)
        return result

    async def _stream(
        self, request: CompletionRequest, step: int, received: list[int]
    ) -> tuple[CompletionResult, float | None]:
        """Returns the result, and the milliseconds to the first delta, None where there was none."""
        result: CompletionResult | None = None
        events, visible_text = self.scope.events, self.visible_text
        started, first_ms = perf_counter(), None
        left = self.scope.max_answer_bytes
        async with aclosing(self.model.stream(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, Delta):
                    if first_ms is None:
                        first_ms = ms_since(started)
                    text = piece.content
                    received.append(size := len(text) if text.isascii() else utf8_size(text))
                    left -= size
                    if left < 0:
                        raise AnswerTooLong(self.scope.max_answer_bytes)
                    if visible_text is None:
                        events.emit("model.delta", step=step, role=self.role, content=piece.content)
                elif not isinstance(piece, StreamBroken):
                    result = piece
                elif visible_text is not None or _retract(events, step):
                    piece.discarded, first_ms = True, None
                    left = self.scope.max_answer_bytes
        if result is None:
            raise ProviderUnavailable("The model's stream ended without a result.")
        if visible_text is not None and (content := visible_text(result)):
            events.emit("model.delta", step=step, role=self.role, content=content)
        return result, first_ms


async def call_model_silently(
    ledger: RunLedger, model: ModelPort, request: CompletionRequest, add_usage: AddUsage | None = None
) -> CompletionResult:
    """Makes one model call without events; reserves and charges it as `call_model` does.

    Raises:
        BudgetExhausted: Tokens, cost or model calls are used up. The call is not made.
        AllProvidersFailed, ProviderError: The model failed.
    """
    opened: OpenCall | None = None
    if (ledger.caps or ledger.parent is not None) and ledger.limits_calls:
        opened, request = await _open(ledger, model, request)
    else:
        ledger.reserve_model_call()
    try:
        result = await model.complete(request)
    except BaseException as error:
        _charge_failed(ledger, opened, error, request)
        raise
    else:
        _charge(ledger, opened, result.usage)
    finally:
        if opened is not None:
            _close(opened)
    if add_usage is not None:
        add_usage(result.usage)
    return result


async def _open(
    ledger: RunLedger, model: ModelPort, request: CompletionRequest
) -> tuple[OpenCall, CompletionRequest]:
    """Reserves a call, and returns its request with an answer that fits what is left.

    Raises:
        BudgetExhausted: What is left does not fit the call.
    """
    claim = await ledger.claim(bounds_of(model, request))
    opened = OpenCall(ledger, claim)
    OPEN_CALL.set(opened)
    return opened, limited(request, claim.answer_tokens)


def _close(opened: OpenCall) -> None:
    """Ends the reservation of a call, which is charged."""
    OPEN_CALL.set(None)
    opened.release()


def _charge(ledger: RunLedger, opened: OpenCall | None, usage: Usage) -> None:
    """Charges a call with what is not charged yet."""
    ledger.add_usage(usage if opened is None else usage - opened.charged)


def _charge_failed(
    ledger: RunLedger,
    opened: OpenCall | None,
    error: BaseException,
    request: CompletionRequest,
    received: Sequence[int] = (),
) -> None:
    """Charges a call without a result: what its provider has reported, else an estimate.

    A call that failed before its first text was refused or never arrived. It costs nothing. A cancelled call
    is charged, because the provider may have worked on it.

    Args:
        received: The bytes of each piece of text that came.
    """
    usage = attached_usage(error)
    if usage is None and (received or isinstance(error, asyncio.CancelledError)):
        output = estimate_size(sum(received))
        usage = Usage(estimate_request(request), output, estimated=True)
        attach_usage(error, usage)
    if usage is not None:
        _charge(ledger, opened, usage)


def _emit_failed(scope: Scope, step: int, role: str, error: BaseException, started: float) -> None:
    """Emits `model.failed`: the providers that were called, how each failed, and the cost.

    The end of a segment of a durable run cancels a call that is made again later. It is not a failure.
    """
    journal = scope.journal
    if journal is not None and journal.is_durable and isinstance(error, asyncio.CancelledError):
        return
    attempts = list(attached_attempts(error))
    code = "cancelled" if isinstance(error, asyncio.CancelledError) else "internal"
    provider, _, model = (attempts[-1]["provider"] if attempts else "").partition("/")
    scope.events.emit(
        "model.failed",
        step=step,
        role=role,
        provider=provider,
        model=model,
        error=error.code if isinstance(error, AstromeshError) else code,
        usage=(attached_usage(error) or Usage()).to_json(),
        attempts=attempts,
        duration_ms=ms_since(started),
        **_place_of(scope),
    )


def _place_of(scope: Scope) -> JsonObject:
    """Returns the path of the node that makes a call, as a field of its event."""
    return {"path": scope.node} if scope.node else {}


def _retract(events: Emitter, step: int) -> bool:
    """Whether the listeners have seen nothing of a broken stream, so that another answer may begin."""
    return isinstance(events, RetractableEmitter) and events.retract(step)


class SelectedTools:
    """A `ToolPort` with the tools that one node may call. Any other name is unknown to it.

    Args:
        node: The name of the node.
        names: The engine's tools that it uses.
        own: Its own tools.
        engine: The engine's tools.
        inject_all: Whether it may call all of the engine's.

    Raises:
        ConfigError: The node names a tool that the engine does not have.
    """

    def __init__(
        self, node: str, names: Sequence[str], own: ToolBox, engine: ToolPort, *, inject_all: bool
    ) -> None:
        self._own, self._engine = own, engine
        offered = {spec.name: spec for spec in engine.specs()}
        for name in names:
            if name not in offered:
                known = ", ".join(offered) or "none"
                raise ConfigError(f"Node {node!r} names the tool {name!r}. The engine has: {known}.")
        own_specs = {spec.name: spec for spec in own.specs()}
        self._own_names = own_specs.keys()
        self._by_name = {**(offered if inject_all else {name: offered[name] for name in names}), **own_specs}
        self._specs = tuple(self._by_name.values())

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if call.name in self._own_names:
            return await self._own.execute(call, context)
        if call.name in self._by_name:
            return await self._engine.execute(call, context)
        return failed_result(call, InvalidToolCall(unknown_tool(call.name, tuple(self._by_name))))


async def call_tools(
    scope: Scope, calls: Sequence[ToolCall], make: Callable[[ToolCall], Coroutine[Any, Any, ToolResult]]
) -> list[ToolResult]:
    """Makes all tool calls of one model turn and returns one result per call, in their order.

    At most `MAX_CONCURRENT_CALLS` run at a time. Calls beyond `MAX_CALLS` are refused.

    Args:
        make: Makes one call.
    """
    limit = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def make_in_turn(call: ToolCall) -> ToolResult:
        async with limit:
            return await make(call)

    done = await together([make_in_turn(call) for call in calls[:MAX_CALLS]])
    scope.note_untrusted(result.name for result in done if result.untrusted)
    refused = [ToolResult(c.id, c.name, _TOO_MANY_CALLS, False, "too_many_calls") for c in calls[MAX_CALLS:]]
    return [*done, *refused] if refused else done


def tool_message(result: ToolResult) -> Message:
    """Returns the message by which the model reads a result."""
    return Message("tool", result.content, tool_call_id=result.call_id, name=result.name)


def goto_of(results: Sequence[ToolResult]) -> str:
    """Returns the node that the commands of tools name, the last one's if they differ, or an empty text."""
    gotos = [one.command.goto for one in results if one.command is not None and one.command.goto]
    return gotos[-1] if gotos else ""


async def call_tool(scope: Scope, tools: ToolPort, call: ToolCall) -> ToolResult:
    """Makes one tool call with its events. A failed tool is a result with `ok=False`, never an exception."""
    if (journal := scope.journal) is not None:
        call_now = partial(_call_recorded if journal.is_durable else _call, scope, tools, call)
        replay = partial(_replay, scope, tools, call)
        return await journal.tool(scope, tools, call, call_now, replay)
    return await _call(scope, tools, call, scope.tool_context(call.id, call.name))


async def _call(scope: Scope, tools: ToolPort, call: ToolCall, context: ToolContext) -> ToolResult:
    name = _start_call(scope, tools, call)
    started = perf_counter()
    if scope.ledger.try_spend("tool_calls"):
        result = await tools.execute(call, context)
    else:
        result = ToolResult(call.id, call.name, _NO_MORE_CALLS, False, "budget_exhausted")
    _finish_call(scope, name, call, result, duration_ms=ms_since(started))
    if scope.capture is not None:
        scope.capture.tool(call, result)
    return result


async def _call_recorded(scope: Scope, tools: ToolPort, call: ToolCall, context: ToolContext) -> ToolResult:
    """Makes a call that may ask people by `interrupt`."""
    if context.step is None:
        return await _call(scope, tools, call, context)
    token = enter_tool(call.name, context.step)
    try:
        return await _call(scope, tools, call, context)
    finally:
        leave(token)


def _replay(scope: Scope, tools: ToolPort, call: ToolCall, result: ToolResult) -> None:
    """Emits and charges a call that a durable run made before it was resumed."""
    name = _start_call(scope, tools, call)
    scope.ledger.spend("tool_calls")
    scope.count_tool_call(call.name)
    _finish_call(scope, name, call, result, duration_ms=result.duration_ms, recorded=True)


def _start_call(scope: Scope, tools: ToolPort, call: ToolCall) -> str:
    """Emits the start of a call, and returns the name of the tool that others may see."""
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = call.arguments
    name = _visible_name(scope, tools, call)
    scope.events.emit("tool.started", id=call.id, name=name, arguments=arguments)
    scope.tools_called.append(name)
    return name


def _finish_call(scope: Scope, name: str, call: ToolCall, result: ToolResult, **fields: Any) -> None:
    if not result.ok:
        fields["error"] = result.error
    if result.untrusted:
        fields["untrusted"] = True
    scope.events.emit("tool.finished", id=call.id, name=name, ok=result.ok, **fields, **_place_of(scope))
    if scope.tool_records is not None:
        scope.tool_records.append(ToolCallRecord(name, call, result.ok, result.content))


def _visible_name(scope: Scope, tools: ToolPort, call: ToolCall) -> str:
    """Returns the name that others may see. A name that no tool has was made up by the model."""
    name = call.name
    if scope.visible_name is None and len(name) <= _MAX_NAME:
        return name
    if any(spec.name == name for spec in tools.specs()):
        return name
    return (name if scope.visible_name is None else scope.visible_name(name))[:_MAX_NAME]


# -- a function as a model --------------------------------------------------------------------------------


#: Takes a CompletionRequest, returns a text or a CompletionResult.
ModelFunction: TypeAlias = Callable[[CompletionRequest], Awaitable["CompletionResult | str"]]


def as_model(value: Any) -> ModelPort:
    """Returns a model, or a function as one.

    Raises:
        ConfigError: It is neither.
    """
    if hasattr(value, "complete"):
        return value  # type: ignore[no-any-return]
    if callable(value):
        return FunctionModel(value)
    raise ConfigError(f"{value!r} is not a model. Pass 'provider:name', a Provider or an async function.")


class FunctionModel:
    """A model that calls a function.

    Args:
        function: Takes a CompletionRequest; returns a text or a CompletionResult, or a coroutine of one.
    """

    def __init__(self, function: Callable[[CompletionRequest], Any]) -> None:
        self._function = function
        self.model = getattr(function, "__name__", type(function).__name__)
        self.name = f"function/{self.model}"

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        result = self._function(request)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, str):
            return CompletionResult(result, provider="function", model=self.model)
        if isinstance(result, CompletionResult):
            return result
        raise ProviderRejected(
            f"The model function returned {result!r}, neither a text nor a CompletionResult."
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result
