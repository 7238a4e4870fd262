"""Test doubles for the clock, tools, memory stores, event sinks, plugins and failing services."""

from __future__ import annotations

import asyncio
import heapq
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from astromesh.errors import ToolError
from astromesh.knowledge.base import OwnedPassage
from astromesh.memory.base import OwnedEvent
from astromesh.tools.base import Tool, ToolContext
from astromesh.types import Event, JsonObject, SemanticResult, SessionKey, ToolCall, ToolResult, ToolSpec

#: turns of the event loop that woken tasks get before time goes on; more than any chain of awaits in a step
_LOOP_ITERATIONS = 50


class ManualClock:
    """A `Clock` that the test moves.

    Args:
        start: seconds since the epoch that `now()` answers first.
        jump: a sleep moves the time by itself and returns at once; for code that only waits between tries.

    `slept` holds what was asked of `sleep`, in order, in seconds.
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
        """Moves the time immediately; due sleepers wake when the event loop runs next.

        Raises:
            ValueError: time does not go back.
        """
        if seconds < 0:
            raise ValueError("Time does not go back.")
        self._passed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._passed:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    async def run_for(self, seconds: float) -> None:
        """Moves the time from one sleeper to the next; each runs at its due time."""
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


# A seam that fails when a test says so.


class FaultInjector:
    """Wraps an implementation of a protocol; planned calls of its methods raise.

    Args:
        wrapped: a real implementation, e.g. a conversation store.
        faults: by method name, what its next calls do: raise this error, or, for None, work.

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


# Hands a ready object through the door that plugins come in by.


class AnyOptions(BaseModel):
    """Accepts every option."""

    model_config = ConfigDict(extra="allow")


def plugin_of(instance: Any, options: type[BaseModel] = AnyOptions) -> type[Any]:
    """Returns a plugin class whose `open` returns this object.

    Example: `Plugins({"providers": {"scripted": plugin_of(ScriptedProvider("hello"))}})`.
    """

    class Ready:
        Options = options
        opened: list[BaseModel] = []  # noqa: RUF012 - one per plugin_of call: with which options it was opened

        @classmethod
        async def open(cls, options: BaseModel, deps: object) -> Any:
            cls.opened.append(options)
            return instance

    return Ready


# A listener that keeps what it heard.


class RecordingSink:
    """An `EventSink` that keeps every event.

    Args:
        wants_deltas: as a socket does; False as the trace store does.
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
            AssertionError: there are none or several.
        """
        found = self.data(kind)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} events of type {kind!r} in {self.types}")
        return found[0]

    def text(self, role: str = "assistant") -> str:
        """Returns the streamed text of one role."""
        return "".join(data["content"] for data in self.data("model.delta") if data.get("role", role) == role)

    def clear(self) -> None:
        self.events.clear()


# Semantic and episodic memory in lists: small, but they keep what they are given.


class InMemorySemanticStore:
    """A `SemanticStore`: a passage's score is the share of the query's words that it holds."""

    def __init__(self) -> None:
        self.passages: list[tuple[str, str, str, str, JsonObject]] = []

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        self.passages += [(tenant, agent, owner, content, metadata) for content, metadata in passages]

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        found = [
            SemanticResult(content, _score(query, content), str(metadata.get("source", "")), metadata)
            for *place, content, metadata in self.passages
            if place == [tenant, agent, owner]
        ]
        near = [result for result in found if result.score and result.score >= threshold]
        return tuple(sorted(near, key=lambda result: -result.score)[:top_k])

    @property
    def place(self) -> Hashable:
        return id(self)

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        numbered = [
            OwnedPassage(number, agent, content, metadata)
            for number, (of, agent, who, content, metadata) in enumerate(self.passages, 1)
            if (of, who) == (tenant, owner) and number > after
        ]
        return tuple(numbered[:limit])

    async def erase(self, key: SessionKey) -> int:
        kept = [p for p in self.passages if (p[0], p[1], p[4].get("session_id")) != key]
        count, self.passages = len(self.passages) - len(kept), kept
        return count

    async def erase_owner(self, tenant: str, owner: str) -> int:
        kept = [p for p in self.passages if (p[0], p[2]) != (tenant, owner)]
        count, self.passages = len(self.passages) - len(kept), kept
        return count

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Keeps its content for the test."""


class InMemoryEpisodicStore:
    """An `EpisodicStore`."""

    def __init__(self) -> None:
        self.events: list[tuple[SessionKey, str, JsonObject]] = []

    async def record(self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float) -> None:
        self.events += [(key, owner, event) for event in events]

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        found = [event for of, who, event in self.events if of == key and owner in (None, who)]
        return tuple(found[-limit:])

    @property
    def place(self) -> Hashable:
        return id(self)

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        numbered = [
            OwnedEvent(number, key.agent, key.session_id, event)
            for number, (key, who, event) in enumerate(self.events, 1)
            if (key.tenant, who) == (tenant, owner) and number > after
        ]
        return tuple(numbered[:limit])

    async def erase(self, key: SessionKey) -> None:
        self.events = [e for e in self.events if e[0] != key]

    async def erase_owner(self, tenant: str, owner: str) -> int:
        kept = [e for e in self.events if (e[0].tenant, e[1]) != (tenant, owner)]
        count, self.events = len(self.events) - len(kept), kept
        return count

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Keeps its content for the test."""


def _score(query: str, content: str) -> float:
    words = set(query.lower().split())
    return len(words & set(content.lower().split())) / len(words) if words else 0.0


# Tools that do what a test says.


class RecordingTool:
    """A `Tool` that answers a value, raises an error, or asks a function of its arguments.

    `calls` holds the arguments of every call, `contexts` the run each was part of.
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
    """A `ToolPort` without policy: no permissions, limits or validation; failures become results.

    Args:
        tools: by name, a `Tool`, a function of the arguments, an exception, or a value to answer.
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
