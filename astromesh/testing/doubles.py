"""Test doubles for models, the clock, tools, event sinks, plugins and failing services."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict

from astromesh.errors import ToolError
from astromesh.providers.base import Capabilities
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tools.base import Tool, ToolContext
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    Event,
    JsonObject,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a script, in full detail.

    Args:
        chunks: the deltas of a stream; empty: word by word.
        delay: seconds before each delta, and before an answer that is not streamed.
        error: raised after the chunks instead of the result.
    """

    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    chunks: Sequence[str] = ()
    usage: Usage | None = None
    delay: float = 0.0
    error: BaseException | None = None
    finish_reason: str = ""


ScriptAnswer: TypeAlias = "Reply | CompletionResult | str | ToolCall | Sequence[ToolCall] | BaseException"
ScriptLine: TypeAlias = "ScriptAnswer | Callable[[CompletionRequest], ScriptAnswer | Awaitable[ScriptAnswer]]"


class ScriptedProvider:
    """A `Provider` that answers its n-th call with the n-th line of the script and records every request.

    A line is a text, a CompletionResult, tool calls, an exception to raise, a `Reply`, or a function of the
    request, sync or async, that returns one of these.

    Args:
        script: the lines.
        repeat: repeats the last line instead of failing.
        name: `provider/model`.
        clock: for the delays of a `Reply`.
        cost: US dollars that `estimated_cost` returns.

    `requests` holds every request in order. `closed_streams` counts streams closed before their end.
    """

    def __init__(
        self,
        *script: ScriptLine,
        repeat: bool = False,
        name: str = "scripted/test-model",
        clock: Clock | None = None,
        capabilities: Capabilities | None = None,
        cost: float = 0.0,
    ) -> None:
        self.name = name
        self.provider, _, self.model = name.partition("/")
        self.capabilities = capabilities or Capabilities()
        self.requests: list[CompletionRequest] = []
        self.closed_streams = 0
        self.closed = False
        #: raised by `ping` if a test sets it
        self.down: BaseException | None = None
        self._script, self._repeat, self._cost = script, repeat, cost
        self._clock: Clock = clock or SystemClock()

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        reply = await self._next(request)
        if reply.delay:
            await self._clock.sleep(reply.delay)
        if reply.error is not None:
            raise reply.error
        return self._result(reply, request)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        finished = False
        try:
            reply = await self._next(request)
            for chunk in reply.chunks or _WORD.findall(reply.content):
                if reply.delay:
                    await self._clock.sleep(reply.delay)
                yield Delta(chunk)
            if reply.error is not None:
                finished = True
                raise reply.error
            finished = True
            yield self._result(reply, request)
        finally:
            self.closed_streams += not finished

    def estimated_cost(self, request: CompletionRequest) -> float:
        return self._cost

    async def ping(self) -> None:
        if self.down is not None:
            raise self.down

    async def close(self) -> None:
        self.closed = True

    async def _next(self, request: CompletionRequest) -> Reply:
        position = len(self.requests)
        self.requests.append(request)
        if position >= len(self._script) and not (self._repeat and self._script):
            raise AssertionError(
                f"The script of {self.name} has {len(self._script)} lines, and this is one call more."
            )
        line = self._script[min(position, len(self._script) - 1)]
        if callable(line) and not isinstance(line, type):
            answer = line(request)
            return _reply(await answer if inspect.isawaitable(answer) else answer)
        return _reply(line)  # type: ignore[arg-type]

    def _result(self, reply: Reply, request: CompletionRequest) -> CompletionResult:
        content = reply.content or "".join(reply.chunks)
        return CompletionResult(
            content=content,
            tool_calls=tuple(reply.tool_calls),
            usage=reply.usage or _word_usage(request, content),
            provider=self.provider,
            model=self.model,
            finish_reason=reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop"),
        )


def _reply(answer: ScriptAnswer) -> Reply:
    match answer:
        case Reply():
            return answer
        case str():
            return Reply(answer)
        case CompletionResult():
            return Reply(
                answer.content, answer.tool_calls, usage=answer.usage, finish_reason=answer.finish_reason
            )
        case ToolCall():
            return Reply(tool_calls=(answer,))
        case BaseException():
            return Reply(error=answer)
        case _:
            return Reply(tool_calls=tuple(answer))


def _word_usage(request: CompletionRequest, content: str) -> Usage:
    """Counts words as tokens: deterministic, and sufficient for sums."""
    words = sum(len(message.content.split()) for message in request.messages)
    return Usage(input_tokens=words, output_tokens=len(content.split()))


#: event-loop turns that woken tasks get before the time moves on; more than any chain of awaits in a step
_LOOP_ITERATIONS = 50


class ManualClock:
    """A `Clock` that the test moves.

    Args:
        start: seconds since the epoch at the start.
        jump: a sleep moves the time itself and returns at once; for code that only waits between attempts.

    `slept` holds the arguments of `sleep`, in order, in seconds.
    """

    def __init__(self, start: float = 1_700_000_000.0, *, jump: bool = False) -> None:
        self.slept: list[float] = []
        self._start, self._passed, self._jump = start, 0.0, jump
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._start + self._passed

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self._jump:
            self.advance(max(seconds, 0.0))
        if self._jump or seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._passed + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """The number of sleeping tasks."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Moves the time immediately. Due sleepers wake when the event loop runs next.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError("A clock does not go back: seconds must not be negative.")
        self._passed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._passed:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    async def run_for(self, seconds: float) -> None:
        """Moves the time from one sleeper to the next. Each runs at its due time."""
        await _run_pending_tasks()
        end = self._passed + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self.advance(max(self._sleepers[0][0] - self._passed, 0.0))
            await _run_pending_tasks()
        self.advance(max(end - self._passed, 0.0))
        await _run_pending_tasks()


async def _run_pending_tasks() -> None:
    for _ in range(_LOOP_ITERATIONS):
        await asyncio.sleep(0)


class FaultInjector:
    """Wraps an implementation of a protocol; planned calls of its methods raise.

    Args:
        wrapped: a real implementation, e.g. a conversation store.
        faults: by method name, the outcomes of its next calls: an error to raise, or None for success.

    `calls` holds the names of the called methods, in order.
    """

    def __init__(self, wrapped: Any, **faults: Sequence[BaseException | None]) -> None:
        self.calls: list[str] = []
        self._wrapped = wrapped
        self._faults = {name: list(planned) for name, planned in faults.items()}

    def fail(self, name: str, *errors: BaseException | None) -> None:
        """Plans the outcome of the next calls of a method."""
        self._faults.setdefault(name, []).extend(errors)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return found
        return self._async(name, found) if inspect.iscoroutinefunction(found) else self._sync(name, found)

    def _take(self, name: str) -> None:
        self.calls.append(name)
        planned = self._faults.get(name)
        if planned and (error := planned.pop(0)) is not None:
            raise error

    def _sync(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._take(name)
            return method(*args, **kwargs)

        return call

    def _async(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._take(name)
            return await method(*args, **kwargs)

        return call


class AnyOptions(BaseModel):
    """Accepts every option."""

    model_config = ConfigDict(extra="allow")


def plugin_of(instance: Any, options: type[BaseModel] = AnyOptions) -> type[Any]:
    """Returns a plugin class whose `open` returns this object.

    Example: `Plugins({"providers": {"scripted": plugin_of(ScriptedProvider("hello"))}})`.
    """

    class Ready:
        Options = options
        opened: list[BaseModel] = []  # noqa: RUF012  the options of each `open`, one list per plugin_of call

        @classmethod
        async def open(cls, options: BaseModel, deps: object) -> Any:
            cls.opened.append(options)
            return instance

    return Ready


class RecordingSink:
    """An `EventSink` that stores every event.

    Args:
        wants_deltas: True as for a socket, False as for the trace store.
    """

    def __init__(self, *, wants_deltas: bool = True) -> None:
        self.wants_deltas = wants_deltas
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        self.events.append(event)

    @property
    def types(self) -> list[str]:
        """The types of all events, in order."""
        return [event.type for event in self.events]

    def of(self, *types: str) -> list[Event]:
        """Returns the events of these types, in order."""
        return [event for event in self.events if event.type in types]

    def data(self, kind: str) -> list[JsonObject]:
        """Returns the payloads of one type, in order."""
        return [event.data for event in self.events if event.type == kind]

    def one(self, kind: str) -> JsonObject:
        """Returns the payload of the only event of this type.

        Raises:
            AssertionError: the events contain none of this type, or more than one.
        """
        found = self.data(kind)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} events of type {kind!r} in {self.types}")
        return found[0]

    def text(self, role: str = "assistant") -> str:
        """Returns the streamed text of one role, without what the stream has taken back."""
        texts: dict[int, list[str]] = {}
        for event in self.events:
            if event.type in ("model.restarted", "model.commentary"):
                texts.pop(event.data["step"], None)
            elif event.type == "model.delta" and event.data.get("role", role) == role:
                texts.setdefault(event.data.get("step", 0), []).append(event.data["content"])
        return "".join(chain.from_iterable(texts.values()))

    def clear(self) -> None:
        self.events.clear()


class RecordingTool:
    """A `Tool` that returns a value, raises an error, or calls a function with its arguments.

    `calls` holds the arguments of every call, `contexts` their contexts.
    """

    def __init__(
        self, name: str, answer: object = "ok", *, description: str = "", parameters: JsonObject | None = None
    ) -> None:
        schema = parameters or {"type": "object", "properties": {}}
        self.spec = ToolSpec(name, description or name, schema)
        self.calls: list[JsonObject] = []
        self.contexts: list[ToolContext] = []
        self._answer = answer

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        self.calls.append(arguments)
        self.contexts.append(context)
        if isinstance(self._answer, BaseException):
            raise self._answer
        answer = self._answer(**arguments) if callable(self._answer) else self._answer
        return await answer if inspect.isawaitable(answer) else answer


class ScriptedTools:
    """A `ToolPort` without permissions, limits and validation. Tool errors become results.

    Args:
        tools: by name, a `Tool`, a function of the arguments, an exception, or a value to return.
    """

    def __init__(self, tools: Mapping[str, Tool | Callable[..., Any] | object] | None = None) -> None:
        self.tools: dict[str, Tool] = {
            name: tool if hasattr(tool, "spec") else RecordingTool(name, tool)  # type: ignore[misc]
            for name, tool in (tools or {}).items()
        }
        self.calls: list[ToolCall] = []

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools.values())

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.calls.append(call)
        tool = self.tools.get(call.name)
        if tool is None:
            return ToolResult(
                call.id, call.name, f"There is no tool {call.name!r}.", False, "invalid_tool_call"
            )
        try:
            value = await tool.call(orjson.loads(call.arguments or "{}"), context)
        except ToolError as error:
            return ToolResult(call.id, call.name, str(error), False, error.code)
        content = value if isinstance(value, str) else orjson.dumps(value).decode()
        return ToolResult(call.id, call.name, content, value=value)
