"""The WebSocket of an agent: runs, cancel, ping (api.md section 2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import orjson
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from astromesh.api import errors
from astromesh.api.auth import Auth
from astromesh.api.errors import invalid, problem
from astromesh.api.outbox import Outbox
from astromesh.api.schemas import Query, SessionId
from astromesh.errors import AstromeshError, InvalidInput, Overloaded, RunNotFound
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.types import CallerContext, Event, JsonObject

router = APIRouter()
MOST_RUNS = 8
UNKNOWN_AGENT = 4404
SERVICE_RESTART = 1012
_SUBPROTOCOL = "bearer."


class RunFrame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["run"] = "run"
    query: Query
    session_id: SessionId
    context: dict[str, Any] = {}


class CancelFrame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["cancel"]
    run_id: str


class PingFrame(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["ping"]


_FRAMES: dict[str, TypeAdapter[Any]] = {
    "run": TypeAdapter(RunFrame),
    "cancel": TypeAdapter(CancelFrame),
    "ping": TypeAdapter(PingFrame),
}


class ConnectionManager:
    """The open sockets of a server (document 001, step 1)."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def register(self, connection: Connection) -> None:
        self._open.add(connection)

    def unregister(self, connection: Connection) -> None:
        self._open.discard(connection)

    async def close_all(self) -> None:
        """Tells every client to come back later (close code 1012)."""
        for connection in tuple(self._open):
            with suppress(RuntimeError):
                await connection.socket.close(SERVICE_RESTART)


@router.websocket("/v1/ws/agent/{agent_name}")
async def agent_socket(socket: WebSocket, agent_name: str) -> None:
    """Each run frame is one run; its events come back as frames."""
    runtime: AgentRuntime = socket.app.state.runtime
    manager: ConnectionManager = socket.app.state.connections
    try:
        caller, subprotocol = await _admit(socket, agent_name)
    except AstromeshError as refused:
        await socket.send_denial_response(errors.answer(refused))
        return
    await socket.accept(subprotocol)
    try:
        agent = runtime.agent(agent_name)
    except AstromeshError as missing:
        await socket.send_text(_text(_error(missing)))
        await socket.close(UNKNOWN_AGENT)
        return
    connection = Connection(socket, runtime, agent, caller)
    manager.register(connection)
    try:
        await connection.serve()
    finally:
        manager.unregister(connection)


class Connection:
    """One socket: a reader, a writer and up to eight runs."""

    def __init__(self, socket: WebSocket, runtime: AgentRuntime, agent: Agent, caller: CallerContext) -> None:
        self.socket = socket
        self._runtime = runtime
        self._agent = agent
        self._caller = caller
        self._outbox = Outbox()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._starting: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until the client leaves; then its runs are cancelled unless the agent lets them go on."""
        writer = asyncio.create_task(self._write())
        try:
            while True:
                await self._handle(await self.socket.receive())
        except WebSocketDisconnect:
            pass
        finally:
            self._outbox.close()
            await self._end_runs()
            writer.cancel()

    async def _handle(self, message: Any) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        try:
            frame = _parse(message.get("text"))
            if isinstance(frame, RunFrame):
                self._start(frame)
            elif isinstance(frame, CancelFrame):
                self._cancel(frame.run_id)
            else:
                self._say({"type": "pong"})
        except AstromeshError as error:
            self._say(_error(error))

    def _start(self, frame: RunFrame) -> None:
        if len(self._starting) >= MOST_RUNS:
            raise Overloaded(f"{MOST_RUNS} runs are going on this socket; wait for one to end.")
        request = RunRequest(frame.query, frame.session_id, frame.context)
        task = asyncio.create_task(self._run(request))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _run(self, request: RunRequest) -> None:
        listener = _Listener(self._outbox, self._runs, asyncio.current_task())
        try:
            await self._runtime.start(self._agent, request, caller=self._caller, sinks=(listener,))
        except AstromeshError as error:
            if not listener.run_id:  # refused before its first event
                self._say(_error(error))
        finally:
            self._runs.pop(listener.run_id, None)

    def _cancel(self, run_id: str) -> None:
        task = self._runs.get(run_id)
        if task is None:
            raise RunNotFound(f"No run {run_id!r} is going on this socket.")
        task.cancel()

    async def _end_runs(self) -> None:
        if self._agent.manifest.spec.on_disconnect == "continue":
            return
        for task in tuple(self._starting):
            task.cancel()
        if self._starting:
            await asyncio.wait(tuple(self._starting))

    def _say(self, frame: JsonObject) -> None:
        self._outbox.send(Event("", 0, 0.0, "frame", frame))

    async def _write(self) -> None:
        while events := await self._outbox.take():
            for event in events:
                frame = to_frame(event)
                if frame is not None:
                    try:
                        await self.socket.send_text(_text(frame))
                    except (RuntimeError, WebSocketDisconnect):
                        return  # the client left between two frames; the reader sees it too


class _Listener:
    """Puts a run's events into the socket's outbox and makes the run known under its id."""

    wants_deltas = True

    def __init__(
        self, outbox: Outbox, runs: dict[str, asyncio.Task[None]], task: asyncio.Task[None] | None
    ) -> None:
        self._outbox = outbox
        self._runs = runs
        self._task = task
        self.run_id = ""

    def send(self, event: Event) -> None:
        if not self.run_id and self._task is not None:
            self.run_id = event.run_id
            self._runs[event.run_id] = self._task
        self._outbox.send(event)


# -- events to frames --------------------------------------------------------------------------------------


def to_frame(event: Event) -> JsonObject | None:
    """The frame of an event, None for events that have none."""
    make = _FRAME_OF.get(event.type)
    frame = make(event.data) if make else None
    if frame is None:
        return None
    return frame if event.type == "frame" else {**frame, "run_id": event.run_id, "seq": event.seq}


def _token(data: JsonObject) -> JsonObject | None:
    if data["role"] != "assistant":
        return None
    return {"type": "token", "content": data["content"], "step": data["step"]}


_FRAME_OF: dict[str, Callable[[JsonObject], JsonObject | None]] = {
    "frame": lambda data: data,
    "run.started": lambda data: {"type": "run_started", "session_id": data["session_id"]},
    "model.delta": _token,
    "tool.started": lambda d: {
        "type": "tool_call",
        "id": d["id"],
        "name": d["name"],
        "arguments": d["arguments"],
    },
    "tool.finished": lambda d: {"type": "tool_result", "id": d["id"], "ok": d["ok"]},
    "run.completed": lambda data: {"type": "done", "done": True, **data},
    "run.failed": lambda data: {"type": "error", "code": data["code"], "detail": data["detail"]},
    "run.cancelled": lambda data: {"type": "cancelled", "response": data["response"]},
    "run.waiting": lambda data: {"type": "waiting", "approval": data.get("approval")},
}


def _parse(text: str | None) -> RunFrame | CancelFrame | PingFrame:
    if text is None:
        raise InvalidInput("Binary frames are not understood here; send JSON text.")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The frame is not JSON: {error}.") from error
    kind = value.get("type", "run") if isinstance(value, dict) else None
    adapter = _FRAMES.get(kind) if isinstance(kind, str) else None
    if adapter is None:
        raise InvalidInput(f"Frames are JSON objects; known types: {', '.join(_FRAMES)}.")
    try:
        frame: RunFrame | CancelFrame | PingFrame = adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidInput(invalid(error.errors(include_url=False, include_input=False))) from error
    return frame


def _error(error: AstromeshError) -> JsonObject:
    _, body = problem(error)
    return {"type": "error", "code": body["code"], "detail": body["detail"]}


def _text(frame: JsonObject) -> str:
    return orjson.dumps(frame).decode()


async def _admit(socket: WebSocket, agent_name: str) -> tuple[CallerContext, str | None]:
    """The caller, by the same headers as HTTP or by the subprotocol `bearer.TOKEN`; never by the URL."""
    auth: Auth = socket.app.state.auth
    offered: list[str] = socket.scope.get("subprotocols", [])
    bearer = next((p for p in offered if p.startswith(_SUBPROTOCOL)), None)
    headers = socket.headers
    if bearer and "authorization" not in headers:
        given = {"authorization": "Bearer " + bearer.removeprefix(_SUBPROTOCOL)}
        return await auth.authorise(given, "agents:run", agent_name), bearer
    return await auth.authorise(headers, "agents:run", agent_name), None
