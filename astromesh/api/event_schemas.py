"""Schemas of events, WebSocket frames and chunks of chat completions, for the OpenAPI description.

The payloads of a run's events have the fields of `astromesh.events`. Payloads may have more fields than their
schema names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, create_model

from astromesh import events
from astromesh.api.schemas import (
    COMPONENT,
    AguiEvent,
    ChatCompletionChunk,
    ResponseEvent,
    RunMetadata,
    RunOut,
    schema_of,
)
from astromesh.api.ws import SOCKET_PATH, CancelFrame, PingFrame, ResumeFrame, RunFrame
from astromesh.types import Event, JsonObject


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


# -- events of Tasks ---------------------------------------------------------------------------------------


class _StageData(_Open):
    task: str = Field(description="Id of the Task, or of the descendant.")
    stage: str


class TaskStarted(_Open):
    task: str
    start: str


class StageStarted(_StageData):
    pass


class StageFinished(_StageData):
    status: str
    duration_ms: float
    error: str = ""


class StageWaiting(_StageData):
    """The stage asks a person."""


class StageDecided(_StageData):
    """A person has answered."""


class DecisionTaken(_StageData):
    edge: str
    to: str


class TaskCloned(_StageData):
    children: int


class TaskSplit(_StageData):
    children: int


class MergeFired(_StageData):
    inputs: list[str] = Field(description="Ids of Tasks.")
    failures: list[str]


class PolicyDenied(_StageData):
    detail: str


class TaskCodeChanged(_Open):
    task: str
    modules: list[str]


class TaskFinished(_Open):
    task: str
    status: str
    state: str
    error: str = ""


_OF_TASKS: Mapping[str, type[BaseModel]] = {
    "task.started": TaskStarted, "task.cloned": TaskCloned, "task.split": TaskSplit,
    "task.code_changed": TaskCodeChanged, "task.finished": TaskFinished, "stage.started": StageStarted,
    "stage.finished": StageFinished, "stage.waiting": StageWaiting, "stage.decided": StageDecided,
    "decision.taken": DecisionTaken, "merge.fired": MergeFired, "policy.denied": PolicyDenied,
}  # fmt: skip

# -- frames of the WebSocket -------------------------------------------------------------------------------


class PongFrame(_Open):
    type: Literal["pong"]


class _RunFrame(_Open):
    run_id: str = ""
    seq: int = 0


class StartedFrame(_RunFrame):
    type: Literal["run_started"]
    session_id: str


class TokenFrame(_RunFrame):
    type: Literal["token"]
    content: str
    step: int


class RestartedFrame(_RunFrame):
    """The tokens of this step so far are void."""

    type: Literal["restarted"]
    step: int


class ToolCallFrame(_RunFrame):
    type: Literal["tool_call"]
    id: str
    name: str
    arguments: Any


class ToolResultFrame(_RunFrame):
    type: Literal["tool_result"]
    id: str
    ok: bool


class DoneFrame(_RunFrame):
    type: Literal["done"]
    done: Literal[True]
    response: str
    agent: str
    session_id: str
    metadata: RunMetadata
    output: Any = None


class CancelledFrame(_RunFrame):
    type: Literal["cancelled"]
    response: str = ""


class ErrorFrame(_RunFrame):
    type: Literal["error"]
    code: str
    detail: str


class WaitingFrame(_RunFrame):
    type: Literal["waiting"]
    approval: dict[str, Any] | None


ServerFrame = Annotated[
    PongFrame | StartedFrame | TokenFrame | RestartedFrame | ToolCallFrame | ToolResultFrame | DoneFrame
    | CancelledFrame | ErrorFrame | WaitingFrame,
    Field(discriminator="type"),
]  # fmt: skip
ClientFrame = RunFrame | CancelFrame | ResumeFrame | PingFrame

# -- what is sent ------------------------------------------------------------------------------------------


def _payload(kind: type[Event]) -> type[BaseModel]:
    """Returns the model of an event's data, from the class that programs match on."""
    fields: dict[str, Any] = dict(events.fields_of(kind))
    return create_model(kind.__name__, __base__=_Open, __doc__=kind.__doc__, **fields)


def _sent(kind: str, data: type[BaseModel]) -> type[BaseModel]:
    """Returns the model of a server-sent event: its id, its name and its data."""
    name = kind.title().replace(".", "").replace("_", "") + "Event"
    described = Field(description="Number in the stream; send the last one as `Last-Event-ID` to resume.")
    fields: dict[str, Any] = {"id": (int, described), "event": (Literal[kind], ...), "data": (data, ...)}
    return create_model(name, **fields)


def _union(payloads: Mapping[str, type[BaseModel]]) -> Any:
    return Annotated[
        Union[tuple(_sent(kind, data) for kind, data in payloads.items())],  # noqa: UP007
        Field(discriminator="event"),
    ]


def components() -> JsonObject:
    """Returns the schemas by name: events, streams of them, and frames."""
    payloads = {kind: _payload(model) for kind, model in events.kinds().items()} | {"run.completed": RunOut}
    found: JsonObject = {}
    for name, type_, description in (
        ("RunEvent", _union(payloads), "An event of a run. Newer versions may send others."),
        ("TaskEvent", _union(_OF_TASKS), "An event of a Task. Newer versions may send others."),
        ("ClientFrame", ClientFrame, "What a client sends on the WebSocket."),
        ("ServerFrame", ServerFrame, "What the server sends on the WebSocket."),
        ("ChatCompletionChunk", ChatCompletionChunk, ""),
        ("ResponseEvent", ResponseEvent, ""),
        ("AguiEvent", AguiEvent, ""),
    ):
        schema = schema_of(type_)
        found |= schema.pop("$defs", {})
        found[name] = {"title": name, "description": description, **schema}
    found["RunEvents"] = _stream("RunEvents", "RunEvent", payloads)
    found["TaskEvents"] = _stream("TaskEvents", "TaskEvent", _OF_TASKS)
    found["ResponseEvents"] = _stream("ResponseEvents", "ResponseEvent", {})
    found["AguiEvents"] = _stream("AguiEvents", "AguiEvent", {})
    found["ChatCompletionChunks"] = _stream("ChatCompletionChunks", "ChatCompletionChunk", {})
    return found


def _stream(name: str, item: str, payloads: Mapping[str, type[BaseModel]]) -> JsonObject:
    """Returns the schema of a server-sent event as it is on the wire: its data are a text.

    Args:
        item: the schema of the decoded event, or of its data where the event has no name.
    """
    models = sorted({model.__name__ for model in payloads.values()}) or [item]
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [{"$ref": COMPONENT.format(model=model)} for model in models]},
    }
    names = {"id": {"type": "string"}, "event": {"type": "string", "enum": sorted(payloads)}}
    return {
        "title": name,
        "description": f"A server-sent event of the stream; decoded, a `{item}`.",
        "type": "object",
        "properties": {**(names if payloads else {}), "data": data},
        "required": [*(names if payloads else {}), "data"],
    }


#: WebSockets have no place in OpenAPI: their frames by path
SOCKETS: JsonObject = {
    SOCKET_PATH: {
        "client": {"$ref": COMPONENT.format(model="ClientFrame")},
        "server": {"$ref": COMPONENT.format(model="ServerFrame")},
    }
}
