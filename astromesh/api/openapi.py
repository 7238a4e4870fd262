"""The OpenAPI description: what the routes declare, and what holds for all of them.

FastAPI knows neither the scopes of a route nor the form of our errors. This module adds both: security per
operation, 401, 403 and 429 where a scope is needed, and one schema for every problem document. It adds the
schemas of events, WebSocket frames and chunks of chat completions, too. The payloads of a run's events have
the fields of `astromesh.events`. Payloads may have more fields than their schema names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Union

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model

from astromesh import events
from astromesh.api.auth import RemoteScope, RequiredScope
from astromesh.api.schemas import (
    COMPONENT,
    PROBLEM_SCHEMA,
    AguiEvent,
    ChatCompletionChunk,
    Described,
    ResponseEvent,
    RunMetadata,
    RunOut,
    problems,
    schema_of,
)
from astromesh.api.ws import SOCKET_PATH, CancelFrame, PingFrame, ResumeFrame, RunFrame
from astromesh.types import Event, JsonObject

#: ways to send a credential; either is enough
_SCHEMES: JsonObject = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a JSON Web Token."},
    "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
#: groups of operations
TAGS: Mapping[str, str] = {
    "agents": "Agents, their tools and their models.",
    "tools": "Tools and models of all agents.",
    "runs": "Runs of agents, and what waits for a person.",
    "sessions": "Conversations.",
    "principals": "All stored data of one principal.",
    "keys": "API keys of the caller's tenant.",
    "knowledge": "Documents, and passages of them.",
    "workflows": "Workflows and their Tasks.",
    "callbacks": "Calls of your server when runs and Tasks end or wait.",
    "schedules": "Runs and Tasks that begin at times.",
    "evaluations": "Datasets and reports.",
    "observability": "Traces, metrics, statistics and the audit log.",
    "operations": "Budgets, channels, faults of the configuration.",
    "agui": "The protocol of AG-UI's frontends.",
    "openai": "The protocol of OpenAI's clients.",
    "channels": "Webhooks of messengers.",
    "health": "Whether the server works.",
}
#: names of the operations, of which clients make functions: they stay, whatever our functions are called
OPERATION_IDS: Mapping[str, str] = {
    "POST /v1/agents/{name}/agui": "run_agent_for_agui",
    "POST /v1/agents/{name}/run": "run_agent",
    "POST /v1/agents/{name}/runs": "accept_run",
    "GET /v1/agents": "list_agents",
    "GET /v1/agents/{name}": "get_agent",
    "GET /v1/agents/{name}/graph": "draw_agent",
    "GET /v1/agents/{name}/sessions": "list_sessions",
    "GET /v1/agents/{name}/sessions/{session_id}": "get_session",
    "DELETE /v1/agents/{name}/sessions/{session_id}": "erase_session",
    "GET /v1/runs": "list_runs",
    "GET /v1/callbacks": "list_callbacks",
    "POST /v1/callbacks/{id}/retry": "retry_callback",
    "GET /v1/queues": "get_queues",
    "GET /v1/schedules": "list_schedules",
    "POST /v1/schedules": "create_schedule",
    "GET /v1/schedules/{schedule_id}": "get_schedule",
    "DELETE /v1/schedules/{schedule_id}": "delete_schedule",
    "POST /v1/schedules/{schedule_id}/pause": "pause_schedule",
    "POST /v1/schedules/{schedule_id}/resume": "resume_schedule",
    "POST /v1/schedules/{schedule_id}/run": "run_schedule",
    "GET /v1/runs/{run_id}": "get_run",
    "GET /v1/runs/{run_id}/events": "follow_run",
    "GET /v1/runs/{run_id}/results/{result_id}": "get_result",
    "POST /v1/runs/{run_id}/cancel": "cancel_run",
    "POST /v1/runs/{run_id}/resume": "resume_run",
    "POST /v1/runs/{run_id}/feedback": "rate_run",
    "GET /v1/runs/{run_id}/steps": "list_run_steps",
    "GET /v1/runs/{run_id}/steps/{step}": "get_run_step",
    "POST /v1/runs/{run_id}/fork": "fork_run",
    "POST /v1/runs/{run_id}/replay": "replay_run",
    "DELETE /v1/runs/{run_id}/steps": "delete_run_steps",
    "GET /v1/runs/compare": "compare_runs",
    "GET /v1/approvals": "list_approvals",
    "GET /v1/principals/{principal}/data": "export_principal",
    "DELETE /v1/principals/{principal}/data": "erase_principal",
    "GET /v1/principals/{principal}/facts": "list_facts",
    "DELETE /v1/principals/{principal}/facts/{fact}": "forget_fact",
    "GET /v1/caller": "get_caller",
    "GET /v1/keys": "list_keys",
    "POST /v1/keys": "create_key",
    "DELETE /v1/keys/{key_id}": "revoke_key",
    "GET /v1/tools": "list_tools",
    "GET /v1/providers": "list_providers",
    "GET /v1/rag/{pipeline}/documents": "list_documents",
    "GET /v1/rag/{pipeline}/evaluations": "list_retrieval_evaluations",
    "GET /v1/rag/{pipeline}/evaluations/{evaluation_id}": "get_retrieval_evaluation",
    "GET /v1/rag/{pipeline}/documents/{document}": "read_document",
    "POST /v1/rag/{pipeline}/documents": "change_documents",
    "POST /v1/rag/{pipeline}/query": "query_documents",
    "GET /v1/evaluations": "list_evaluations",
    "GET /v1/evaluations/{evaluation_id}": "get_evaluation",
    "GET /v1/datasets": "list_datasets",
    "POST /v1/runs/{run_id}/case": "make_case",
    "GET /v1/workflows": "list_workflows",
    "POST /v1/workflows/{name}/run": "run_workflow",
    "POST /v1/workflows/{name}/runs": "accept_task",
    "GET /v1/tasks": "list_tasks",
    "GET /v1/tasks/{task_id}": "get_task",
    "GET /v1/tasks/compare": "compare_tasks",
    "GET /v1/tasks/{task_id}/steps": "list_task_steps",
    "GET /v1/tasks/{task_id}/steps/{step}": "get_task_step",
    "POST /v1/tasks/{task_id}/fork": "fork_task",
    "GET /v1/tasks/{task_id}/trace": "get_task_trace",
    "GET /v1/tasks/{task_id}/manifest": "get_task_manifest",
    "GET /v1/tasks/{task_id}/graph": "draw_task",
    "GET /v1/tasks/{task_id}/artifacts": "list_artifacts",
    "GET /v1/tasks/{task_id}/events": "follow_task",
    "POST /v1/tasks/{task_id}/cancel": "cancel_task",
    "POST /v1/tasks/{task_id}/pause": "pause_task",
    "POST /v1/tasks/{task_id}/step": "step_task",
    "POST /v1/tasks/{task_id}/resume": "resume_task",
    "POST /v1/tasks/{task_id}/decide": "answer_task",
    "POST /v1/tasks/{task_id}/replay": "replay_task",
    "GET /v1/audit": "list_acts",
    "GET /v1/agents/{name}/manifest": "get_manifest",
    "GET /v1/budgets": "list_budgets",
    "GET /v1/channels": "list_channels",
    "GET /v1/faults": "list_faults",
    "GET /v1/statistics": "get_statistics",
    "GET /v1/traces": "list_traces",
    "GET /v1/traces/{trace_id}": "get_trace",
    "GET /metrics": "get_metrics",
    "GET /v1/models": "list_models",
    "GET /v1/models/{name}": "get_model",
    "POST /v1/chat/completions": "create_chat_completion",
    "POST /v1/responses": "create_response",
    "POST /v1/responses/compact": "compact_conversation",
    "GET /v1/responses/{response_id}": "get_response",
    "DELETE /v1/responses/{response_id}": "delete_response",
    "POST /v1/responses/{response_id}/cancel": "cancel_response",
    "GET /v1/responses/{response_id}/input_items": "list_input_items",
    "GET /v1/channels/{channel}/webhook": "verify_webhook",
    "POST /v1/channels/{channel}/webhook": "receive_webhook",
    "GET /health/live": "get_liveness",
    "GET /health/ready": "get_readiness",
}
#: operations that start something; each takes an `Idempotency-Key`
_IDEMPOTENT = frozenset({
    "run_agent", "accept_run", "fork_run", "run_workflow", "accept_task", "fork_task",
    "create_chat_completion", "create_response",
})  # fmt: skip
_IDEMPOTENCY_KEY: JsonObject = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeats with the same key, within 24 hours, are one run and get the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]*$"},
}
#: schemas of FastAPI's own errors, which no route answers
_FOREIGN = ("HTTPValidationError", "ValidationError")


#: protocols with descriptions of their own, by their packages
_PROTOCOLS: Mapping[str, str] = {
    "a2a": "https://a2a-protocol.org/v1.0.0/specification",
    "mcp": "https://modelcontextprotocol.io/specification",
}


class DescribedFastAPI(FastAPI):
    """FastAPI whose description is true of errors and scopes."""

    def openapi(self) -> dict[str, Any]:
        """Returns the description; it is made once."""
        if self.openapi_schema is None:
            for route in self.router.routes:
                if isinstance(route, APIRoute):
                    _write_body(route)
            self.openapi_schema = _completed(super().openapi(), self)
        return self.openapi_schema


def _write_body(route: APIRoute) -> None:
    """Replaces the model of a body (`schemas.request_body`) by its schema, once for all apps."""
    for media in (route.openapi_extra or {}).get("requestBody", {}).get("content", {}).values():
        if isinstance(media["schema"], type):
            media["schema"] = schema_of(media["schema"])


def _completed(description: JsonObject, app: FastAPI) -> JsonObject:
    components = description.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in _FOREIGN:
        schemas.pop(name, None)
    _add(schemas, {"Problem": PROBLEM_SCHEMA, **event_components()})
    description["x-websockets"] = SOCKETS
    description["x-protocols"] = _protocols(app)
    components["securitySchemes"] = _SCHEMES
    for key, route, operation in _operations(description, app):
        operation["operationId"] = OPERATION_IDS.get(key, operation["operationId"])
        _name_body(schemas, operation)
        if operation["operationId"] in _IDEMPOTENT:
            operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
        responses = operation["responses"]
        for content in (one.get("content", {}) for one in responses.values()):
            if "$ref" in (schema := content.get("text/event-stream", {}).get("schema", {})):
                schema.pop("type", None)  # FastAPI adds that of a text
        if "422" in responses:  # FastAPI declares its own form of it
            responses["422"] = _described(422)
        for status in _usual(route, operation):
            responses.setdefault(str(status), _described(status))
        responses["default"] = _described("default")
        required = next(_scopes(route), None)
        if required is None:
            operation["security"] = []
            continue
        ways: list[JsonObject] = [{name: [required.name] if required.name else []} for name in _SCHEMES]
        # programs on this machine need no credential
        operation["security"] = [{}, *ways] if isinstance(required, RemoteScope) else ways
        for status in (401, 403, 429) if required.name else (401, 429):
            responses.setdefault(str(status), _described(status))
    return description


def _protocols(app: FastAPI) -> JsonObject:
    """Returns the routes that other specifications describe, by protocol, of those that are installed."""
    found: JsonObject = {}
    for route in app.router.routes:
        if not isinstance(route, APIRoute) or route.include_in_schema:
            continue
        for package, url in _PROTOCOLS.items():
            if package in route.tags and find_spec(package) is not None:
                protocol = found.setdefault(package, {"specification": url, "paths": {}})
                scopes = [one.name for one in _scopes(route)]
                protocol["paths"].setdefault(route.path_format, {}).update(
                    {method.lower(): {"scopes": scopes} for method in route.methods or ()}
                )
    return found


def _usual(route: APIRoute, operation: JsonObject) -> Iterator[int]:
    """Yields the statuses of all routes that name something in their path, or have a body."""
    if "{" in route.path_format:
        yield 404
    if "requestBody" in operation:
        yield 413


def _add(schemas: JsonObject, more: JsonObject) -> None:
    """Adds components. Raises: ValueError: two have one name."""
    for name, schema in more.items():
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"The description has two schemas {name!r}. Rename the model of one.")


def _name_body(schemas: JsonObject, operation: JsonObject) -> None:
    """Makes components of a body whose schema stands in its operation (`schemas.request_body`)."""
    for media in operation.get("requestBody", {}).get("content", {}).values():
        schema = media["schema"]
        if "$ref" not in schema:
            name = schema["title"]
            _add(schemas, {**schema.pop("$defs", {}), name: schema})
            media["schema"] = {"$ref": COMPONENT.format(model=name)}


def _described(status: int | str) -> JsonObject:
    (problem,) = problems(401).values()
    return {"description": _DESCRIPTIONS[status], **problem}


_DESCRIPTIONS: Mapping[int | str, str] = {
    401: "There is no credential, or it is not valid.",
    403: "The credential lacks the scope.",
    404: "There is no such thing, or the caller may not see it.",
    413: "The body is larger than `api.max_body_bytes`.",
    422: "The request is not valid.",
    429: "The principal has sent too many requests. `Retry-After` says when to try again.",
    "default": "Another error.",
}


def _operations(description: JsonObject, app: FastAPI) -> Iterator[tuple[str, APIRoute, JsonObject]]:
    for route in app.router.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                # a parameter of a path in OpenAPI has no converter
                operation = description["paths"][route.path_format][method.lower()]
                yield f"{method} {route.path_format}", route, operation


def _scopes(route: APIRoute) -> Iterator[RequiredScope]:
    for dependency in route.dependencies:
        if isinstance(dependency.dependency, RequiredScope):
            yield dependency.dependency


class _Open(Described):
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


class CommentaryFrame(_RunFrame):
    """The tokens of this step stand beside the answer."""

    type: Literal["commentary"]
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
    PongFrame | StartedFrame | TokenFrame | RestartedFrame | CommentaryFrame | ToolCallFrame | ToolResultFrame
    | DoneFrame | CancelledFrame | ErrorFrame | WaitingFrame,
    Field(discriminator="type"),
]  # fmt: skip
ClientFrame = RunFrame | CancelFrame | ResumeFrame | PingFrame

# -- what is sent ------------------------------------------------------------------------------------------


def _payload(kind: type[Event]) -> type[BaseModel]:
    """Returns the model of an event's data, from the class that programs match on."""
    fields: dict[str, Any] = dict(events.fields_of(kind))
    return create_model(kind.__name__, __base__=_Open, __doc__=kind.__doc__, **fields)


def _event_model(kind: str, data: type[BaseModel]) -> type[BaseModel]:
    """Returns the model of a server-sent event: its id, its name and its data."""
    name = kind.title().replace(".", "").replace("_", "") + "Event"
    described = Field(description="Number in the stream; send the last one as `Last-Event-ID` to resume.")
    fields: dict[str, Any] = {"id": (int, described), "event": (Literal[kind], ...), "data": (data, ...)}
    return create_model(name, **fields)


def _union(payloads: Mapping[str, type[BaseModel]]) -> Any:
    return Annotated[
        Union[tuple(_event_model(kind, data) for kind, data in payloads.items())],  # noqa: UP007
        Field(discriminator="event"),
    ]


def event_components() -> JsonObject:
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
