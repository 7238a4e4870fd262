"""Listeners of a run of an engine: its events, and the parts that `engine.astream` makes of them.

There is one stream of events. A mode is an encoder of it:

    mode        event           data of the part
    values      node.updated    the state after the node: an instance of its class, else the context
    updates     node.updated    the values that the node has changed, by key
    messages    model.delta     a piece of text
    custom      node.custom     what a node has emitted
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, get_args

from astromesh.errors import InvalidInput, LeaseLost, NodeFailed
from astromesh.graph.active_node import CUSTOM_EVENT
from astromesh.graph.audibility import AnswerSteps
from astromesh.graph.calls import ASSISTANT
from astromesh.graph.node_record import NodeRecorder
from astromesh.graph.records import GraphResult, S
from astromesh.graph.run import UNLIMITED_RETRIES, UPDATED_EVENT, Run
from astromesh.graph.scope import Scope
from astromesh.graph.stored_runs import OpenRun, caller_of
from astromesh.telemetry.events import MODEL_DELTA, EventStream
from astromesh.text import TextBuffer, did_you_mean
from astromesh.types import CallerContext, Event, JsonObject, calling_as

Mode: TypeAlias = Literal["values", "updates", "messages", "custom"]
MODES: tuple[Mode, ...] = get_args(Mode)


class StreamPart(NamedTuple):
    """A part of a stream: `mode, node, data = part`.

    Args:
        node: The path of the node: `outer/inner`.
        data: As the table of this module says.
    """

    mode: Mode
    node: str
    data: Any


class StateListener(Protocol):
    """A listener of a run, which may receive the state after each node."""

    wants_deltas: bool
    wants_state: bool

    def send(self, event: Event) -> None: ...


class Call(NamedTuple):
    """How one run is called."""

    config: Mapping[str, Any] | None
    caller: CallerContext | None
    listener: StateListener | None = None


class QueueListener:
    """Puts events into a queue, deltas too."""

    wants_deltas = True
    wants_state = False

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def send(self, event: Event) -> None:
        self._queue.put_nowait(event)

    def close(self) -> None:
        """Ends the iteration behind the events so far."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._queue.get()) is not None:
            yield event


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancels a run whose listener leaves before its end."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


def checked_modes(mode: Mode | Sequence[Mode]) -> frozenset[Mode]:
    """Raises: InvalidInput: there is no such mode."""
    modes: Sequence[Mode] = (mode,) if isinstance(mode, str) else tuple(mode)
    for one in modes:
        if one not in MODES:
            raise InvalidInput(
                f"There is no stream mode {one!r}. {did_you_mean(str(one), MODES)}".rstrip()
                + f" Known: {', '.join(MODES)}."
            )
    return frozenset(modes)


class GraphStream(Generic[S]):
    """The parts of one run, in order: `async for mode, node, data in engine.astream("Hi")`.

    The run starts with the first part. Leaving the loop or an `async with` before the end cancels it.

    Args:
        modes: Of the parts.
        start: Runs the graph with a listener.
    """

    def __init__(
        self, modes: frozenset[Mode], start: Callable[[StateListener], Coroutine[Any, Any, GraphResult[S]]]
    ) -> None:
        self._reading = _Reading[S](modes, start)
        self._parts: AsyncGenerator[StreamPart] | None = None

    @property
    def result(self) -> GraphResult[S]:
        """The result of the run.

        Raises:
            InvalidInput: The run has not ended.
        """
        if self._reading.result is None:
            raise InvalidInput("The run has not ended: read the stream to its end first.")
        return self._reading.result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPart:
        if self._parts is None:
            self._parts = self._reading.parts()
        return await anext(self._parts)

    async def aclose(self) -> None:
        """Cancels the run unless it has ended."""
        if self._parts is not None:
            await self._parts.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Reading(Generic[S]):
    """The run behind a stream. It does not know the stream, which asyncio closes when nobody holds it."""

    def __init__(
        self, modes: frozenset[Mode], start: Callable[[StateListener], Coroutine[Any, Any, GraphResult[S]]]
    ) -> None:
        self._modes, self._start = modes, start
        self._nodes: dict[int, str] = {}
        self.result: GraphResult[S] | None = None

    async def parts(self) -> AsyncGenerator[StreamPart]:
        listener = QueueListener()
        listener.wants_state = bool(self._modes & {"values", "updates"})
        listener.wants_deltas = "messages" in self._modes
        task = asyncio.create_task(self._start(listener))
        task.add_done_callback(lambda _: listener.close())
        try:
            async for event in listener:
                for part in self._parts_of(event):
                    yield part
            self.result = await task
        finally:
            await stop(task)

    def _parts_of(self, event: Event) -> Sequence[StreamPart]:
        data, modes = event.data, self._modes
        if event.type == UPDATED_EVENT:
            known: tuple[tuple[Mode, Any], ...] = (("updates", data["update"]), ("values", data["values"]))
            return [StreamPart(mode, data["node"], value) for mode, value in known if mode in modes]
        if event.type == "model.started":
            self._nodes[data["step"]] = data.get("path", "")
        elif event.type == MODEL_DELTA and "messages" in modes:
            return [StreamPart("messages", self._nodes.get(data["step"], ""), data["content"])]
        elif event.type == CUSTOM_EVENT and "custom" in modes:
            return [StreamPart("custom", data["node"], data["data"])]
        return ()


# -- runs ----------------------------------------------------------------------------------------------------


class GraphEvents:
    """The emitter of a run of an engine: its stream, which says what text of models is not the answer."""

    def __init__(self, run_id: str, listeners: Sequence[StateListener] = ()) -> None:
        self._stream = EventStream(run_id, listeners)
        self._answer = AnswerSteps(self._stream.emit)
        #: the text of the active steps of role `assistant`
        self._texts: dict[int, TextBuffer] = {}

    @property
    def streaming(self) -> bool:
        return self._stream.streaming

    def emit(self, type: str, /, **data: Any) -> None:
        is_answer = data.get("role") == ASSISTANT
        if is_answer and type == MODEL_DELTA:
            self._note(data["step"], data["content"])
        elif is_answer and type == "model.started":
            self._answer.begin(data["step"])
        self._stream.emit(type, **data)
        if is_answer and type == "model.finished":
            self._texts.pop(data["step"], None)
            if data["tool_calls"]:
                self._answer.set_aside(data["step"])

    def end(self, answer: str, scope: Scope) -> None:
        """Sends an answer that no step has sent: it was held back or rewritten."""
        if not self._answer.settle(answer) and answer:
            self._stream.emit(MODEL_DELTA, step=scope.next_step(), role=ASSISTANT, content=answer)

    def _note(self, step: int, text: str) -> None:
        buffer = self._texts.get(step)
        if buffer is None:
            buffer = self._texts[step] = TextBuffer()
            self._answer.add(step, buffer.getvalue)
        buffer.write(text)


async def run_with_events(run: Run, events: GraphEvents, scope: Scope) -> GraphResult[Any]:
    """Executes a run between its first event and its last."""
    events.emit("run.started")
    try:
        result = await run.execute()
    except asyncio.CancelledError:
        events.emit("run.cancelled", response=run.result.text if run.result else "")
        raise
    _emit_end(events, scope, result)
    return result


def _emit_end(events: GraphEvents, scope: Scope, result: GraphResult[Any]) -> None:
    report = result.report
    if report.error and result.output is None:
        code = NodeFailed.code if report.stop_reason == "failed" else report.stop_reason
        events.emit("run.failed", code=code, detail=report.error, metadata=report.to_json())
    else:
        events.end(result.text, scope)
        events.emit("run.completed", response=result.text, metadata=report.to_json())


async def execute_stored(
    make: Callable[[JsonObject, Mapping[str, Any] | None, Scope], Run], opened: OpenRun, call: Call
) -> GraphResult[Any]:
    """Executes a stored run until it ends or waits.

    Args:
        make: Makes the run of its request, `config` and scope.

    Raises:
        Divergence: The run makes other calls than its record, or takes another path.
        LeaseLost: Somebody else has continued it.
    """
    listener = call.listener
    events = GraphEvents(opened.run_id, () if listener is None else [listener])
    caller = caller_of(opened.request, call.caller)
    scope = Scope(opened.run_id, caller=caller, events=events, retries=UNLIMITED_RETRIES)
    scope.journal = opened.journal
    run = make(opened.request, call.config, scope)
    scope.clock = run.settings.clock
    run.recorder = NodeRecorder(opened.journal)
    run.tells_state, run.is_local = listener is not None and listener.wants_state, True
    events.emit("run.started")
    with calling_as(caller):
        task = asyncio.create_task(run.execute())
    opened.start(task.cancel)
    try:
        result = await task
    except asyncio.CancelledError:
        return await _suspended(run, opened, events)
    if opened.is_lost:
        raise LeaseLost(f"The run {opened.run_id!r} was continued elsewhere.")
    if opened.failure is not None:
        await opened.leave()
        raise opened.failure
    await opened.end("completed" if result.ok else "failed")
    result.run_id = opened.run_id
    if listener is not None:
        _emit_end(events, scope, result)
    return result


async def _suspended(run: Run, opened: OpenRun, events: GraphEvents) -> GraphResult[Any]:
    """Returns the result of a run that waits. Ends one that was cancelled."""
    result, task = run.result, asyncio.current_task()
    if opened.is_lost:
        raise LeaseLost(f"The run {opened.run_id!r} was continued elsewhere.")
    if not opened.is_waiting or result is None:
        await opened.end("cancelled")
        events.emit("run.cancelled", response=result.text if result else "")
        raise asyncio.CancelledError
    result.interrupts = await opened.wait()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    result.run_id, result.output = opened.run_id, None
    result.report.stop_reason, result.report.error = "waiting", ""
    events.emit("run.waiting", interrupts=[{"id": one.id, "node": one.node} for one in result.interrupts])
    return result
