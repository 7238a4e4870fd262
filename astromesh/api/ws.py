"""The WebSocket of an agent: runs, cancel, resume, ping (api.md section 2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import orjson
import structlog
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from astromesh.access.audit import AuditEntry
from astromesh.api import errors
from astromesh.api.auth import Auth
from astromesh.api.errors import problem, public_failure, validation_detail
from astromesh.api.middleware.audit import record_act
from astromesh.api.middleware.body_limit import TOO_DEEP, nests_too_deep
from astromesh.api.requests import MAX_SEQ, Query, SessionId, viewer_of
from astromesh.api.responses import EventBuffer, json_bytes
from astromesh.durable.base import ENDED_STATUSES
from astromesh.errors import AstromeshError, InvalidInput, Overloaded, RunNotFound, Unavailable
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.telemetry.events import TERMINAL_EVENTS
from astromesh.telemetry.ids import read_traceparent
from astromesh.telemetry.ids import trace_id as new_trace_id
from astromesh.types import CallerContext, Event, JsonObject

router = APIRouter()
log = structlog.get_logger("astromesh.api")
MAX_RUNS = 8
UNKNOWN_AGENT, UNAVAILABLE, SERVICE_RESTART = 4404, 4503, 1012
_SUBPROTOCOL = "bearer."
#: characters of an id that the audit log takes, and of a trace context
_MAX_RUN_ID, _MAX_TRACEPARENT = 200, 512


class RunFrame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["run"] = "run"
    query: Query
    session_id: SessionId
    context: dict[str, Any] = {}
    #: of this run; without it that of the handshake counts
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


@router.websocket("/v1/ws/agent/{agent_name}")
async def agent_socket(socket: WebSocket, agent_name: str) -> None:
    """Each run frame is one run; its events come back as frames."""
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
    """One socket: a reader, a writer while there is something to write, and up to eight runs."""

    __slots__ = (
        "_agent", "_caller", "_ends", "_listeners", "_outbox", "_runs", "_runtime", "_writer", "socket",
    )  # fmt: skip

    def __init__(self, socket: WebSocket, runtime: AgentRuntime, agent: Agent, caller: CallerContext) -> None:
        self.socket = socket
        self._runtime = runtime
        self._agent = agent
        self._caller = caller
        self._outbox: EventBuffer | None = None
        self._writer: asyncio.Task[None] | None = None
        self._runs: set[asyncio.Task[None]] = set()
        self._listeners: dict[str, _Listener] = {}
        #: by run: who waits for the end of one that was cancelled here and is heard elsewhere
        self._ends: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Until the client leaves; then its runs are cancelled unless the agent lets them go on."""
        try:
            while True:
                await self._handle(await self.socket.receive())
        except WebSocketDisconnect:
            pass
        finally:
            await self._leave()

    async def _handle(self, message: Any) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        try:
            match _parse(message.get("text")):
                case RunFrame() as frame:
                    self._start(frame)
                case CancelFrame(run_id=run_id):
                    await self._cancel(run_id)
                case ResumeFrame(run_id=run_id, after=after):
                    await self._resume(run_id, after)
                case _:
                    self._send({"type": "pong"})
        except AstromeshError as error:
            self._send(_error(error))
        except Exception as error:  # noqa: BLE001  border of a frame: the socket and its runs live
            self._send(_crashed(error))

    def _start(self, frame: RunFrame) -> None:
        if len(self._runs) >= MAX_RUNS:
            raise Overloaded(f"{MAX_RUNS} runs are going on this socket; wait for one to end.")
        self.socket.app.state.auth.count(self._caller)
        told = frame.traceparent or self.socket.headers.get("traceparent")
        caused_by = read_traceparent(told)
        request = RunRequest(frame.query, frame.session_id, frame.context, caused_by=caused_by)
        task = asyncio.create_task(self._run(request))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _run(self, request: RunRequest) -> None:
        sinks = (_Listener(self._event_buffer(), self._listeners),)
        try:
            await self._runtime.runner.start(self._agent, request, caller=self._caller, sinks=sinks)
        except AstromeshError as error:
            if not error.run_id:  # refused before its first event
                self._send(_error(error))
        except Exception as error:  # noqa: BLE001  border of a run: nobody else would hear of it
            self._send(_crashed(error))

    async def _cancel(self, run_id: str) -> None:
        stopped, told = False, run_id in self._listeners or run_id in self._ends
        try:
            stopped = await self._runtime.runs.stop(run_id, viewer_of(self.socket))
        finally:
            entry = AuditEntry("run.cancel", run_id[:_MAX_RUN_ID], "done" if stopped else "refused")
            await record_act(self.socket.app.state.audit, self._caller, entry)
        if not stopped:
            raise RunNotFound(f"The run {run_id!r} has ended.")
        if not told:
            self._ends[run_id] = asyncio.create_task(self._send_end(run_id))

    async def _send_end(self, run_id: str) -> None:
        """Answers the cancel of a run that this socket does not hear, once the run has ended."""
        try:
            state: JsonObject = {"status": "running"}
            while state["status"] not in ENDED_STATUSES:  # a tool may take its time to let go
                state = await self._runtime.runs.cancel(run_id, viewer_of(self.socket))
            if state["status"] != "cancelled":
                raise RunNotFound(f"The run {run_id!r} has ended.")
            said = (state["result"] or {}).get("response", "")
            self._send({"type": "cancelled", "response": said, "run_id": run_id})
        except AstromeshError as error:
            self._send(_error(error))
        except Exception as error:  # noqa: BLE001  border of a frame: nobody else would hear of it
            self._send(_crashed(error))
        finally:
            self._ends.pop(run_id, None)

    async def _resume(self, run_id: str, after: int) -> None:
        """A run's frames from one on; where this socket hears it already, from now on instead of then."""
        before = self._listeners.get(run_id)
        if before is None and len(self._listeners) >= 2 * MAX_RUNS:
            raise Overloaded(f"{2 * MAX_RUNS} runs are heard on this socket; wait for one to end.")
        listener = _Listener(self._event_buffer(), self._listeners)
        viewer = viewer_of(self.socket)
        listener.unsubscribe = await self._runtime.runs.follow(run_id, viewer, after, listener)
        if before is not None:
            before.close()
        if listener.unsubscribe is None and not listener.received_any:
            raise InvalidInput(f"The run {run_id!r} has ended; there is nothing behind {after}.")

    async def _leave(self) -> None:
        if self._outbox is not None:
            self._outbox.discard()
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
        """The outbox, with its writer from the first use on: most sockets are idle."""
        if self._outbox is None:
            self._outbox = EventBuffer()
            self._writer = asyncio.create_task(self._write(self._outbox))
        return self._outbox

    async def _write(self, outbox: EventBuffer) -> None:
        while events := await outbox.take():
            for event in events:
                frame = _frame(event)
                if frame is not None:
                    try:
                        await self.socket.send_text(_text(frame))
                    except (RuntimeError, WebSocketDisconnect):
                        return  # the client left between two frames; the reader sees it too


class _Listener:
    """One run on one socket.

    Args:
        known: the socket's listeners by run, where this one stands from its first event to its last.
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

    def close(self) -> None:
        """Hears nothing any more."""
        self._buffer = None
        if self.unsubscribe is not None:
            self.unsubscribe()


# -- events to frames --------------------------------------------------------------------------------------


def to_frame(event: Event) -> JsonObject | None:
    """The frame of an event, None for events that have none."""
    make = _ENCODERS.get(event.type)
    frame = make(event.data) if make else None
    if frame is None:
        return None
    return frame if event.type == "frame" else {**frame, "run_id": event.run_id, "seq": event.seq}


def _frame(event: Event) -> JsonObject | None:
    try:
        return to_frame(event)
    except Exception as error:  # noqa: BLE001  border of a frame: the rest is still to be told
        return {**_crashed(error), "run_id": event.run_id, "seq": event.seq}


def _failure(data: JsonObject) -> JsonObject:
    shown = public_failure(data)
    return {"code": shown["code"], "detail": shown["detail"]}


def _token(data: JsonObject) -> JsonObject | None:
    if data["role"] != "assistant":
        return None
    return {"type": "token", "content": data["content"], "step": data["step"]}


_ENCODERS: dict[str, Callable[[JsonObject], JsonObject | None]] = {
    "frame": lambda data: data,
    "run.started": lambda data: {"type": "run_started", "session_id": data["session_id"]},
    "model.delta": _token,
    "model.restarted": lambda data: {"type": "restarted", "step": data["step"]},
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
        raise InvalidInput("Binary frames are not understood here; send JSON text.")
    if nests_too_deep(text.encode(errors="replace")):
        raise InvalidInput(TOO_DEEP)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The frame is not JSON: {error}.") from error
    kind = value.get("type", "run") if isinstance(value, dict) else None
    adapter = _FRAMES.get(kind) if isinstance(kind, str) else None
    if adapter is None:
        raise InvalidInput(f"Frames are JSON objects; known types: {', '.join(_FRAMES)}.")
    try:
        frame: Frame = adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidInput(validation_detail(error.errors(include_url=False, include_input=False))) from error
    return frame


def _error(error: AstromeshError) -> JsonObject:
    _, body = problem(error)
    return {"type": "error", "code": body["code"], "detail": body["detail"]}


def _crashed(error: Exception) -> JsonObject:
    """The frame of a fault of ours; what it was stands in the log alone."""
    failure = AstromeshError("a fault of ours")
    failure.trace_id = new_trace_id()
    log.error("frame_crashed", trace_id=failure.trace_id, exc_info=error)
    return _error(failure) | {"trace_id": failure.trace_id}


def _text(frame: JsonObject) -> str:
    return json_bytes(frame).decode()


async def _authorise(socket: WebSocket, agent_name: str) -> tuple[CallerContext, str | None]:
    """The caller, by the same headers as HTTP or by the subprotocol `bearer.TOKEN`; never by the URL."""
    auth: Auth = socket.app.state.auth
    offered: list[str] = socket.scope.get("subprotocols", [])
    bearer = next((p for p in offered if p.startswith(_SUBPROTOCOL)), None)
    headers = socket.headers
    if bearer and "authorization" not in headers:
        given = {"authorization": "Bearer " + bearer.removeprefix(_SUBPROTOCOL)}
        return await auth.authorise(given, "agents:run", agent_name), bearer
    return await auth.authorise(headers, "agents:run", agent_name), None
