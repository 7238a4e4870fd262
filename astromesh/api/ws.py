"""The WebSocket of an agent: runs, cancel, resume, ping (docs/api.md, WebSocket)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

import orjson
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from astromesh.access.audit import AuditEntry
from astromesh.api import errors
from astromesh.api.auth import Auth
from astromesh.api.errors import problem, public_failure, validation_detail
from astromesh.api.event_streams import EventBuffer, json_bytes
from astromesh.api.middleware.audit import record_act
from astromesh.api.middleware.limits import json_fault
from astromesh.api.middleware.server_span import ServerSpan
from astromesh.api.requests import MAX_SEQ, RunBody, run_request, viewer_of
from astromesh.durable.base import ENDED_STATUSES
from astromesh.errors import AstromeshError, InvalidInput, Overloaded, RunNotFound, Unavailable
from astromesh.logs import get_logger
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.telemetry.events import TERMINAL_EVENTS
from astromesh.telemetry.ids import trace_id as new_trace_id
from astromesh.types import CallerContext, Event, JsonObject

router = APIRouter()
log = get_logger("astromesh.api")
MAX_RUNS = 8
SOCKET_PATH = "/v1/ws/agent/{agent_name}"
#: 101 Switching Protocols: the status of a run without an error
_SWITCHED = 101
UNKNOWN_AGENT, UNAVAILABLE, SERVICE_RESTART = 4404, 4503, 1012
_SUBPROTOCOL = "bearer."

Argument = TypeVar("Argument")
#: characters of an id in the audit log, and of a trace context
_MAX_RUN_ID, _MAX_TRACEPARENT = 200, 512


class RunFrame(RunBody):
    type: Literal["run"] = "run"
    #: without it, that of the handshake counts
    traceparent: str = Field("", max_length=_MAX_TRACEPARENT)


class CancelFrame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["cancel"]
    run_id: str


class ResumeFrame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["resume"]
    run_id: str
    after: int = Field(0, ge=0, le=MAX_SEQ)


class PingFrame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["ping"]


Frame = RunFrame | CancelFrame | ResumeFrame | PingFrame
_FRAMES: dict[str, TypeAdapter[Any]] = {
    "run": TypeAdapter(RunFrame),
    "cancel": TypeAdapter(CancelFrame),
    "resume": TypeAdapter(ResumeFrame),
    "ping": TypeAdapter(PingFrame),
}


class ConnectionManager:
    """The open WebSockets of a server (document 001, step 1)."""

    def __init__(self) -> None:
        self._open: set[WebSocket] = set()

    def __len__(self) -> int:
        return len(self._open)

    def register(self, socket: WebSocket) -> None:
        self._open.add(socket)

    def unregister(self, socket: WebSocket) -> None:
        self._open.discard(socket)

    async def close_all(self) -> None:
        """Closes every socket with code 1012, which asks its client to come back later."""
        for socket in tuple(self._open):
            with suppress(RuntimeError):
                await socket.close(SERVICE_RESTART)


@router.websocket(SOCKET_PATH)
async def agent_socket(socket: WebSocket, agent_name: str) -> None:
    """Starts a run for each run frame, and sends its events as frames."""
    runtime: AgentRuntime = socket.app.state.runtime
    manager: ConnectionManager = socket.app.state.connections
    try:
        caller, subprotocol = await _authorise(socket, agent_name)
    except AstromeshError as refused:
        await socket.send_denial_response(errors.error_response(refused))
        return
    socket.state.caller = caller
    await socket.accept(subprotocol)
    try:
        agent = runtime.agent(agent_name)
    except AstromeshError as missing:
        await socket.send_text(_text(_error(missing)))
        await socket.close(UNAVAILABLE if isinstance(missing, Unavailable) else UNKNOWN_AGENT)
        return
    manager.register(socket)
    try:
        await Connection(socket, runtime, agent, caller).serve()
    finally:
        manager.unregister(socket)


class Connection:
    """One socket: a reader, a writer from its first frame on, and up to eight runs."""

    __slots__ = (
        "_agent", "_buffer", "_caller", "_ends", "_listeners", "_runs", "_runtime", "_writer", "socket",
    )  # fmt: skip

    def __init__(self, socket: WebSocket, runtime: AgentRuntime, agent: Agent, caller: CallerContext) -> None:
        self.socket = socket
        self._runtime = runtime
        self._agent = agent
        self._caller = caller
        self._buffer: EventBuffer | None = None
        self._writer: asyncio.Task[None] | None = None
        self._runs: set[asyncio.Task[None]] = set()
        self._listeners: dict[str, _Listener] = {}
        #: by run: the task that waits for the end of a run that this socket cancels and does not follow
        self._ends: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Serves until the client disconnects; then cancels its runs, unless the agent keeps them running."""
        try:
            while True:
                message = await self.socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                await self._guard(self._handle, message.get("text"))
        finally:
            await self._leave()

    async def _guard(self, work: Callable[[Argument], Awaitable[None]], argument: Argument) -> None:
        """Does `work`, and sends an error as a frame: the socket and its other runs continue."""
        try:
            await work(argument)
        except AstromeshError as error:
            self._send(_error(error))
        except Exception as error:  # noqa: BLE001  a frame or a run raised, and nobody else learns of it
            self._send(_crashed(error))

    async def _handle(self, text: str | None) -> None:
        match _parse(text):
            case RunFrame() as frame:
                await self._start(frame)
            case CancelFrame(run_id=run_id):
                await self._cancel(run_id)
            case ResumeFrame(run_id=run_id, after=after):
                await self._resume(run_id, after)
            case _:
                self._send({"type": "pong"})

    async def _start(self, frame: RunFrame) -> None:
        if len(self._runs) >= MAX_RUNS:
            raise Overloaded(f"{MAX_RUNS} runs are active on this socket. Wait for one to end.")
        await self.socket.app.state.auth.count(self._caller)
        request = run_request(frame, frame.traceparent or self.socket.headers.get("traceparent"))
        task = asyncio.create_task(self._guard(self._run, request))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _run(self, request: RunRequest) -> None:
        """Executes a run. If traces are exported, it has a SERVER span; the socket itself lives for hours."""
        exporter, span = self._runtime.runner.exporter, None
        if exporter is not None:
            span = ServerSpan(exporter, request.caused_by, _SWITCHED)
            request = replace(request, caused_by=span.own)
        sinks = (_Listener(self._event_buffer(), self._listeners),)
        try:
            await self._runtime.runner.start(self._agent, request, caller=self._caller, sinks=sinks)
        except AstromeshError as error:
            if span is not None:
                span.status = error.status
            if not error.run_id:  # the runtime refused the run before its first event
                raise
        finally:
            if span is not None:
                span.end("GET", SOCKET_PATH, self.socket.scope)

    async def _cancel(self, run_id: str) -> None:
        stopped, is_followed = False, run_id in self._listeners or run_id in self._ends
        try:
            stopped = await self._runtime.runs.stop(run_id, viewer_of(self.socket))
        finally:
            entry = AuditEntry("run.cancel", run_id[:_MAX_RUN_ID], "done" if stopped else "refused")
            await record_act(self.socket.app.state.audit, self._caller, entry)
        if not stopped:
            raise RunNotFound(f"The run {run_id!r} has ended.")
        if not is_followed:
            self._ends[run_id] = asyncio.create_task(self._guard(self._send_end, run_id))

    async def _send_end(self, run_id: str) -> None:
        """Confirms the cancel of a run that this socket does not follow, once the run has ended."""
        try:
            state: JsonObject = {"status": "running"}
            while state["status"] not in ENDED_STATUSES:  # a tool may take long to stop
                state = await self._runtime.runs.cancel(run_id, viewer_of(self.socket))
            if state["status"] != "cancelled":
                raise RunNotFound(f"The run {run_id!r} has ended.")
            response = (state["result"] or {}).get("response", "")
            self._send({"type": "cancelled", "response": response, "run_id": run_id})
        finally:
            self._ends.pop(run_id, None)

    async def _resume(self, run_id: str, after: int) -> None:
        """Sends a run's frames after `after`, also where this socket follows the run already."""
        before = self._listeners.get(run_id)
        if before is None and len(self._listeners) >= 2 * MAX_RUNS:
            raise Overloaded(f"This socket follows {2 * MAX_RUNS} runs. Wait for one to end.")
        listener = _Listener(self._event_buffer(), self._listeners)
        viewer = viewer_of(self.socket)
        listener.unsubscribe = await self._runtime.runs.follow(run_id, viewer, after, listener)
        if before is not None:
            before.close()
        if listener.unsubscribe is None and not listener.received_any:
            raise InvalidInput(f"The run {run_id!r} has ended and has no event after {after}.")

    async def _leave(self) -> None:
        if self._buffer is not None:
            self._buffer.discard()
        for listener in tuple(self._listeners.values()):
            listener.close()
        if self._writer is not None:
            self._writer.cancel()
        for end in self._ends.values():
            end.cancel()
        if self._agent.continues_on_disconnect:
            return
        for task in (running := tuple(self._runs)):
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _send(self, frame: JsonObject) -> None:
        self._event_buffer().send(Event("", 0, 0.0, "frame", frame))

    def _event_buffer(self) -> EventBuffer:
        """Returns the buffer. Its first use starts the writer, because most sockets are idle."""
        if self._buffer is None:
            self._buffer = EventBuffer()
            self._writer = asyncio.create_task(self._write(self._buffer))
        return self._buffer

    async def _write(self, buffer: EventBuffer) -> None:
        while events := await buffer.take():
            for event in events:
                frame = to_frame(event)
                if frame is not None:
                    try:
                        await self.socket.send_text(_text(frame))
                    except (RuntimeError, WebSocketDisconnect):
                        return  # the client disconnected between two frames; the reader sees it too


class _Listener:
    """One run on one socket.

    Args:
        listeners: the socket's, by run; this one is among them from its first event to its last.
    """

    wants_deltas = True

    def __init__(self, buffer: EventBuffer, listeners: dict[str, _Listener]) -> None:
        self._buffer: EventBuffer | None = buffer
        self._listeners = listeners
        self.unsubscribe: Callable[[], None] | None = None
        self.received_any = False

    def send(self, event: Event) -> None:
        if self._buffer is None:
            return
        self._buffer.send(event)
        self.received_any = True
        if event.type in TERMINAL_EVENTS:
            self._listeners.pop(event.run_id, None)
        else:
            self._listeners[event.run_id] = self

    @property
    def has_room(self) -> bool:
        return self._buffer is None or self._buffer.has_room

    async def room(self) -> None:
        """See `EventBuffer.room`."""
        if self._buffer is not None:
            await self._buffer.room()

    def close(self) -> None:
        """Ignores every later event."""
        self._buffer = None
        if self.unsubscribe is not None:
            self.unsubscribe()


# -- events to frames --------------------------------------------------------------------------------------


def to_frame(event: Event) -> JsonObject | None:
    """Returns the frame of an event, None for events that have none."""
    encode = _ENCODERS.get(event.type)
    try:
        frame = encode(event.data) if encode else None
    except Exception as error:  # noqa: BLE001  an event cannot be encoded: the others follow
        frame = _crashed(error)
    if frame is None or event.type == "frame":
        return frame
    return {**frame, "run_id": event.run_id, "seq": event.seq}


def _failure(data: JsonObject) -> JsonObject:
    failure = public_failure(data)
    return {"code": failure["code"], "detail": failure["detail"]}


def _token(data: JsonObject) -> JsonObject | None:
    if data["role"] != "assistant":
        return None
    return {"type": "token", "content": data["content"], "step": data["step"]}


_ENCODERS: dict[str, Callable[[JsonObject], JsonObject | None]] = {
    "frame": lambda data: data,
    "run.started": lambda data: {"type": "run_started", "session_id": data["session_id"]},
    "model.delta": _token,
    "model.restarted": lambda data: {"type": "restarted", "step": data["step"]},
    "model.commentary": lambda data: {"type": "commentary", "step": data["step"]},
    "tool.started": lambda d: {
        "type": "tool_call",
        "id": d["id"],
        "name": d["name"],
        "arguments": d["arguments"],
    },
    "tool.finished": lambda d: {"type": "tool_result", "id": d["id"], "ok": d["ok"]},
    "run.completed": lambda data: {"type": "done", "done": True, **data},
    "run.failed": lambda data: {"type": "error", **_failure(data)},
    "run.cancelled": lambda data: {"type": "cancelled", "response": data["response"]},
    "run.waiting": lambda data: {"type": "waiting", "approval": data.get("approval")},
}


def _parse(text: str | None) -> Frame:
    if text is None:
        raise InvalidInput("Send frames as JSON text, not binary.")
    if fault := json_fault(text.encode(errors="replace")):
        raise InvalidInput(fault)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The frame is not JSON: {error}.") from error
    kind = value.get("type", "run") if isinstance(value, dict) else None
    adapter = _FRAMES.get(kind) if isinstance(kind, str) else None
    if adapter is None:
        raise InvalidInput(f"A frame is a JSON object with a type of: {', '.join(_FRAMES)}.")
    try:
        frame: Frame = adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidInput(validation_detail(error.errors(include_url=False, include_input=False))) from error
    return frame


def _error(error: AstromeshError) -> JsonObject:
    _, body = problem(error)
    return {"type": "error", "code": body["code"], "detail": body["detail"]}


def _crashed(error: Exception) -> JsonObject:
    """Logs an unexpected exception, and returns a frame that does not reveal it."""
    failure = AstromeshError("an unexpected exception")
    failure.trace_id = new_trace_id()
    log.error("frame_crashed", trace_id=failure.trace_id, exc_info=error)
    return _error(failure) | {"trace_id": failure.trace_id}


def _text(frame: JsonObject) -> str:
    return json_bytes(frame).decode()


async def _authorise(socket: WebSocket, agent_name: str) -> tuple[CallerContext, str | None]:
    """Authenticates by the headers of HTTP or the subprotocol `bearer.TOKEN`, never by the URL."""
    auth: Auth = socket.app.state.auth
    offered: list[str] = socket.scope.get("subprotocols", [])
    bearer = next((p for p in offered if p.startswith(_SUBPROTOCOL)), None)
    headers, state = socket.headers, socket.scope["state"]
    if bearer and "authorization" not in headers:
        authorization = {"authorization": "Bearer " + bearer.removeprefix(_SUBPROTOCOL)}
        return await auth.authorise(authorization, "agents:run", agent_name, state=state), bearer
    return await auth.authorise(headers, "agents:run", agent_name, state=state), None
