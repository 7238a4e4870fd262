"""A2A 1.0 with the types and the bindings of `a2a-sdk`: a run of an agent as a task of another one's client.

A task is a durable run, so that it can be read, subscribed to, answered and cancelled in any process. Its id
is that of the run, its context is the session. The text of a task's artifact is the answer of the run. A
run that waits for a person is `input-required`, and goes on with the next message of the task.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial, wraps
from hashlib import sha256
from typing import Any, NoReturn, ParamSpec, TypeVar

import orjson
from a2a.server.context import ServerCallContext
from a2a.server.events import Event as TaskEvent
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    HTTPAuthSecurityScheme,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SecurityRequirement,
    SecurityScheme,
    SendMessageRequest,
    StreamResponse,
    StringList,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.routing import BaseRoute, Mount, Router

from astromesh.access.audit import MAX_OBJECT_LENGTH, AuditEntry
from astromesh.access.scopes import Viewer, principal_of
from astromesh.api.chat_requests import attachment_of, file_of
from astromesh.api.dependencies import Cursor
from astromesh.api.errors import public_failure
from astromesh.api.event_streams import EventBuffer
from astromesh.api.middleware.audit import record_act
from astromesh.api.requests import caller_of
from astromesh.api.routes.runs import decide
from astromesh.durable.approvals import open_questions
from astromesh.durable.base import (
    ENDED_STATUSES,
    Callback,
    IdempotencyKey,
    RunQuery,
    RunRow,
    StoredCallback,
)
from astromesh.durable.callbacks import CallbackSender
from astromesh.errors import (
    AstromeshError,
    Conflict,
    IdempotencyConflict,
    NotFound,
    RequestError,
    RunNotFound,
)
from astromesh.graph.audibility import AnswerText
from astromesh.net.http import is_http
from astromesh.plugins import Deps
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.idempotency import KEY_SECONDS
from astromesh.runtime.records import RunRequest
from astromesh.telemetry import ids
from astromesh.text import is_blank, with_integers
from astromesh.tools.base import CLIENT_TOOL
from astromesh.types import Attachment, CallerContext, Event, JsonObject

PROTOCOL_VERSION = "1.0"
_ARTIFACT = "answer"
_MAX_CONTEXT_ID, _DEFAULT_PAGE, _MAX_PAGE = 256, 50, 100
#: push notification configs of one task; characters of their URL and of their header values
_MAX_CONFIGS, _MAX_URL, _MAX_HEADER = 8, 2048, 2048
#: the name of the plugin, which callbacks remember
PUBLISHER = "a2a"
_INPUT_MODES = [
    "text/plain", "application/json", "application/pdf", "image/png", "image/jpeg", "image/gif", "image/webp",
    "audio/wav", "audio/mpeg",
]  # fmt: skip
_STATES: Mapping[str, TaskState] = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "waiting": TaskState.TASK_STATE_INPUT_REQUIRED,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "failed": TaskState.TASK_STATE_FAILED,
    "cancelled": TaskState.TASK_STATE_CANCELED,
}
_NO_STATUS = "TASK_STATE_UNSPECIFIED"
#: words of a person who approves a call or denies it, where a message has no data
_YES, _NO = frozenset({"approve", "approved", "yes"}), frozenset({"deny", "denied", "no"})

# the SDK logs the words of a request that cannot be read, with a stack trace
_sdk_log = logging.getLogger("a2a.server.routes.jsonrpc_dispatcher")
_sdk_log.setLevel(logging.ERROR)
_sdk_log.addFilter(lambda record: not str(record.msg).startswith("Failed to"))
#: statuses that A2A leaves to HTTP, with their headers
_OF_HTTP = frozenset({401, 403, 429, 503})
#: where the state of a request has the error that is answered in place of what the SDK says
REFUSED = "a2a_refused"

Given = ParamSpec("Given")
Made = TypeVar("Made")


class A2AServer:
    """The plugin `publishers: a2a`: the agents of a runtime as A2A agents."""

    class Options(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        runtime: AgentRuntime

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime
        self._routers: dict[str, Router] = {}

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> A2AServer:
        return cls(options.runtime)

    def router(self, name: str, prefix: str) -> Router:
        """Returns the JSON-RPC and HTTP+JSON bindings of an agent, as an ASGI application."""
        if name not in self._routers:
            handler, context = TaskHandler(self._runtime, name), _ContextBuilder()
            routes: list[BaseRoute] = [*create_jsonrpc_routes(handler, prefix, context)]
            rest = create_rest_routes(handler, context, path_prefix=prefix)
            routes += [route for route in rest if not isinstance(route, Mount)]  # an agent has no tenants
            self._routers[name] = Router(routes)
        return self._routers[name]

    @staticmethod
    def refused_in(scope: Mapping[str, Any]) -> AstromeshError | None:
        """Returns the error of a request that has its own status, None where the SDK answers."""
        found: AstromeshError | None = scope.get("state", {}).get(REFUSED)
        return found

    def card(self, agent: Agent, url: str, *, guarded: bool) -> JsonObject:
        """Returns the agent card.

        Args:
            url: of both bindings.
            guarded: whether a request needs a key or a token.
        """
        spec, version = agent.manifest.spec, agent.manifest.metadata.version
        about = spec.identity.description or f"The agent {agent.name}."
        title = spec.identity.display_name or agent.name
        modes = ["text/plain", *(["application/json"] if agent.output_schema is not None else [])]
        bindings = [
            AgentInterface(url=url, protocol_binding=binding, protocol_version=PROTOCOL_VERSION)
            for binding in ("JSONRPC", "HTTP+JSON")
        ]
        card = AgentCard(
            name=title,
            description=about,
            version=version or "0",
            supported_interfaces=bindings,
            capabilities=AgentCapabilities(
                streaming=True, push_notifications=self._runtime.runner.callbacks is not None
            ),
            default_input_modes=_INPUT_MODES,
            default_output_modes=modes,
            skills=[AgentSkill(id=agent.name, name=title, description=about, tags=["agent"])],
        )
        if guarded:
            card.security_schemes["bearer"].CopyFrom(
                SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
            )
            card.security_requirements.append(SecurityRequirement(schemes={"bearer": StringList()}))
        found: JsonObject = MessageToDict(card)
        return found

    @staticmethod
    def notification(row: RunRow) -> JsonObject:
        """Returns what a push notification says of a run."""
        found: JsonObject = with_integers(MessageToDict(StreamResponse(task=task_of(row))))
        return found


class _ContextBuilder(ServerCallContextBuilder):
    """Takes the caller from the request, which the route has authorised."""

    def build(self, request: Request) -> ServerCallContext:
        caller, audit = caller_of(request), request.app.state.audit
        more = {"caller": caller, "audit": audit, "refuse": partial(setattr, request.state, REFUSED)}
        more["params"] = request.state.a2a_params
        return ServerCallContext(state={"headers": dict(request.headers), **more})


def translated(
    method: Callable[Given, Coroutine[Any, Any, Made]],
) -> Callable[Given, Coroutine[Any, Any, Made]]:
    """Raises errors of astromesh as those of the protocol. The last argument is the context."""

    @wraps(method)
    async def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        try:
            return await method(*args, **kwargs)
        except AstromeshError as error:
            _refuse(error, args[-1])

    return call


def _refuse(error: AstromeshError, context: Any) -> NoReturn:
    if error.status in _OF_HTTP:
        context.state["refuse"](error)
    if isinstance(error, NotFound):
        raise TaskNotFoundError(str(error)) from error
    if isinstance(error, RequestError) and error.status < 500:
        raise InvalidParamsError(str(error), {"code": error.code}) from error
    raise InternalError(str(error) if error.public else None, {"code": error.code}) from error


class TaskHandler(RequestHandler):
    """The operations of A2A on the runs of one agent."""

    def __init__(self, runtime: AgentRuntime, name: str) -> None:
        self._runtime, self._name = runtime, name

    @validate_request_params
    @translated
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        row, after = await self._accept(params, context)
        if not params.configuration.return_immediately:
            with suppress(AstromeshError):  # how it ended is the state of the task
                await self._runtime.runs.wait(row, (), after)
        return await self._task(row.run_id, context, _history(params.configuration))

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[TaskEvent]:
        row, after = await translated(self._accept)(params, context)
        async for event in self._events(row.run_id, context, after):
            yield event

    async def on_subscribe_to_task(
        self, params: Any, context: ServerCallContext
    ) -> AsyncGenerator[TaskEvent]:
        row = await translated(self._row)(params.id, context)
        if row.status in ENDED_STATUSES:
            raise UnsupportedOperationError(f"The task {params.id!r} has ended.")
        async for event in self._events(row.run_id, context):
            yield event

    @translated
    async def on_get_task(self, params: Any, context: ServerCallContext) -> Task:
        return await self._task(params.id, context, _history(params))

    @translated
    async def on_list_tasks(self, params: Any, context: ServerCallContext) -> ListTasksResponse:
        size = params.page_size or _DEFAULT_PAGE
        if not 1 <= size <= _MAX_PAGE:
            raise InvalidParamsError(f"pageSize: it must be from 1 to {_MAX_PAGE}.")
        if params.HasField("status_timestamp_after"):
            raise InvalidParamsError("statusTimestampAfter: this server does not filter by it. Leave it out.")
        requested = context.state["params"].get("status") or _NO_STATUS
        if not params.status and requested != _NO_STATUS:  # the SDK drops what it does not know
            known = ", ".join([*TaskState.keys()][1:])
            raise InvalidParamsError(f"status: use one of {known}.")
        statuses: dict[Any, Any] = {None: "", **{state: status for status, state in _STATES.items()}}
        status = statuses.get(params.status or None)
        cursor = Cursor.of(f"a2a {self._name}", params.page_token, "pageToken")
        if status is None:  # no run is in this state
            return ListTasksResponse(page_size=size)
        tenant, owner = self._viewer(context)
        query = RunQuery(tenant, owner, self._name, params.context_id, status, size, after=cursor.after)
        page = await self._runtime.runs.list(query)
        tasks = [await self._task(run["run_id"], context, _history(params)) for run in page.runs]
        total, more = await self._runtime.runs.count(query), cursor.next(page.next) or ""
        return ListTasksResponse(tasks=tasks, next_page_token=more, page_size=size, total_size=total)

    @translated
    async def on_cancel_task(self, params: Any, context: ServerCallContext) -> Task:
        outcome = "refused"
        try:
            row = await self._row(params.id, context)
            if row.status in ENDED_STATUSES:
                raise TaskNotCancelableError(f"The task {params.id!r} has ended.")
            try:
                await self._runtime.runs.cancel(row.run_id, self._viewer(context))
            except Conflict as error:
                raise TaskNotCancelableError(str(error)) from error
            outcome = "done"
            return await self._task(row.run_id, context)
        finally:
            act = AuditEntry("run.cancel", params.id[:MAX_OBJECT_LENGTH], outcome)
            await record_act(context.state["audit"], _caller(context), act)

    async def on_get_extended_agent_card(self, params: Any, context: ServerCallContext) -> AgentCard:
        raise ExtendedAgentCardNotConfiguredError

    # -- push notifications: callbacks of the run, told in the words of A2A ---------------------------------

    @translated
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        self._callbacks()
        return await self._set_push(await self._row(params.task_id, context), params)

    @translated
    async def on_get_task_push_notification_config(
        self, params: Any, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        callbacks, row = self._callbacks(), await self._row(params.task_id, context)
        found = await callbacks.of_run(row.run_id, PUBLISHER)
        for one in found:
            if one.name == _config_name(params.id, row.run_id):
                return _config_of(row.run_id, one)
        raise TaskNotFoundError(f"The task {row.run_id!r} has no push notifications {params.id!r}.")

    @translated
    async def on_list_task_push_notification_configs(
        self, params: Any, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        callbacks, row = self._callbacks(), await self._row(params.task_id, context)
        if params.page_token:
            raise InvalidParamsError("pageToken: the list has one page. Begin without `pageToken`.")
        found = await callbacks.of_run(row.run_id, PUBLISHER)
        configs = [_config_of(row.run_id, one) for one in found]
        return ListTaskPushNotificationConfigsResponse(configs=configs)

    @translated
    async def on_delete_task_push_notification_config(self, params: Any, context: ServerCallContext) -> None:
        callbacks, row = self._callbacks(), await self._row(params.task_id, context)
        await callbacks.delete(row.run_id, PUBLISHER, _config_name(params.id, row.run_id))

    def _callbacks(self) -> CallbackSender:
        """Raises: PushNotificationNotSupportedError: the operator has set no secret for callbacks."""
        if self._runtime.runner.callbacks is None:
            raise PushNotificationNotSupportedError
        return self._runtime.runner.callbacks

    async def _set_push(self, row: RunRow, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        callbacks, callback = self._callbacks(), callback_of(config, row.run_id)
        others = {one.name for one in await callbacks.of_run(row.run_id, PUBLISHER)} - {callback.name}
        if len(others) >= _MAX_CONFIGS:
            raise InvalidParamsError(f"A task may have at most {_MAX_CONFIGS} push notification configs.")
        if not await callbacks.set(row.run_id, callback):
            raise InvalidParamsError("url: another push notification config of the task has it.")
        return _config_of(row.run_id, callbacks.stored(callback))

    # -- runs ----------------------------------------------------------------------------------------------

    def _viewer(self, context: ServerCallContext) -> Viewer:
        return Viewer(*principal_of(_caller(context)))

    async def _row(self, run_id: str, context: ServerCallContext) -> RunRow:
        with suppress(RunNotFound):
            row = await self._runtime.runs.row(run_id, self._viewer(context))
            if row.agent == self._name:
                return row
        raise TaskNotFoundError(f"The agent {self._name!r} has no task {run_id[:64]!r}.")

    async def _task(self, run_id: str, context: ServerCallContext, history: int | None = None) -> Task:
        return task_of(await self._row(run_id, context), history)

    async def _accept(self, params: SendMessageRequest, context: ServerCallContext) -> tuple[RunRow, int]:
        """Returns the run of a message, and the number of its last event so far."""
        message = params.message
        push = None
        if params.configuration.HasField("task_push_notification_config"):
            self._callbacks()
            push = params.configuration.task_push_notification_config
        if message.task_id:
            if push is not None:
                await self._set_push(await self._row(message.task_id, context), push)
            return await self._answer(message, context)
        runtime, caller = self._runtime, _caller(context)
        agent = runtime.agent(self._name)
        text = text_of(message.parts)
        attachments = attachments_of(message.parts)
        if is_blank(text) and not attachments:
            raise InvalidParamsError("message.parts: an agent needs text or a file.")
        if len(message.context_id) > _MAX_CONTEXT_ID or not message.context_id.isprintable():
            raise InvalidParamsError(f"message.contextId: at most {_MAX_CONTEXT_ID} printable characters.")
        session = message.context_id or ids.new_id()
        callback = None if push is None else callback_of(push)
        request = RunRequest(text, session, attachments=attachments, callback=callback)
        digest = sha256(message.SerializeToString(deterministic=True)).hexdigest()
        tenant, owner = principal_of(caller)
        expires = runtime.clock.now() + KEY_SECONDS
        key = IdempotencyKey(tenant, owner, f"a2a {self._name}", message.message_id, digest, expires)
        try:
            return await runtime.runner.accept(agent, request, caller=caller, key=key), 0
        except IdempotencyConflict as error:
            raise InvalidParamsError(
                "message.messageId: another message had it. Send a new id, or the same message again."
            ) from error

    async def _answer(self, message: Message, context: ServerCallContext) -> tuple[RunRow, int]:
        """Continues a run that waits with the answer to its oldest question."""
        runtime, row = self._runtime, await self._row(message.task_id, context)
        if message.context_id and message.context_id != row.session_id:
            raise InvalidParamsError("message.contextId: the task belongs to another context.")
        questions = [one for one in open_questions(row) if one["kind"] != CLIENT_TOOL]
        if row.status != "waiting" or not questions:
            why = _asked_above(row) if row.status == "waiting" and row.parent else f"It is {row.status}."
            raise UnsupportedOperationError(f"The task {row.run_id!r} waits for no message. {why}")
        last = await runtime.runs.last_event(row.run_id)
        decision = decision_of(questions[0], message.parts)
        decisions = {questions[0].get("id", ""): decision}
        decided = await decide(runtime, row, decisions, _caller(context), context.state["audit"])
        return decided, last

    async def _events(
        self, run_id: str, context: ServerCallContext, after: int = 0
    ) -> AsyncGenerator[TaskEvent]:
        """Yields the task, then what happens to it until it ends or needs input."""
        row = await self._row(run_id, context)
        yield task_of(row, with_artifacts=False)
        buffer, encoder = EventBuffer(close_at_end=True), TaskEncoder(row)
        leave = await self._runtime.runs.follow(run_id, self._viewer(context), after, buffer)
        if leave is None:
            buffer.close()
        try:
            while events := await buffer.take():
                for event in events:
                    for made in encoder(event):
                        yield made
                    if event.type == "run.waiting":
                        return
        finally:
            buffer.discard()
            if leave is not None:
                leave()


def _history(params: Any) -> int | None:
    """Returns how many messages a task is to have; None: all."""
    return params.history_length if params.HasField("history_length") else None


def callback_of(config: TaskPushNotificationConfig, run_id: str = "") -> Callback:
    """Returns a configuration of push notifications as a callback.

    Args:
        run_id: of the task, if there is one already.

    Raises:
        InvalidParamsError: its URL, or a text of its headers, is none.
    """
    url, auth = config.url, config.authentication
    if not is_http(url) or len(url) > _MAX_URL:
        raise InvalidParamsError(f"url: it must be an http(s) URL of at most {_MAX_URL} characters.")
    headers = {}
    if config.token:
        headers["x-a2a-notification-token"] = config.token
    if auth.scheme and auth.credentials:
        headers["authorization"] = f"{auth.scheme} {auth.credentials}"
    name = _config_name(config.id, run_id)
    texts = (*headers.values(), name)
    if not all(len(one) <= _MAX_HEADER and one.isascii() and one.isprintable() for one in texts):
        raise InvalidParamsError(
            f"id, token and authentication: at most {_MAX_HEADER} printable ASCII characters each."
        )
    return Callback(url, headers=headers, publisher=PUBLISHER, name=name)


def _config_name(id: str, run_id: str) -> str:
    """A configuration without an id has that of its task; it is stored without a name."""
    return "" if id == run_id else id


def _config_of(run_id: str, callback: StoredCallback) -> TaskPushNotificationConfig:
    """Returns a configuration without its secrets: token and credentials."""
    return TaskPushNotificationConfig(id=callback.name or run_id, task_id=run_id, url=callback.url)


def _caller(context: ServerCallContext) -> CallerContext:
    caller: CallerContext = context.state["caller"]
    return caller


# -- messages to requests and decisions ----------------------------------------------------------------------


def text_of(parts: Iterable[Part]) -> str:
    """Returns text, and data as JSON."""
    texts = []
    for part in parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(orjson.dumps(_data_of(part)).decode())
    return "\n".join(texts)


def _data_of(part: Part) -> Any:
    return with_integers(MessageToDict(part.data))


def attachments_of(parts: Iterable[Part]) -> tuple[Attachment, ...]:
    """Raises: InvalidInput: a URL is not one of http, https or data."""
    found = []
    for part in parts:
        kind = part.WhichOneof("content")
        if kind == "url":
            found.append(attachment_of(part.url, "message.parts", part.media_type, part.filename))
        elif kind == "raw":
            raw = MessageToDict(part).get("raw", "")  # base64
            found.append(file_of(raw, part.filename, part.media_type))
    return tuple(found)


def decision_of(question: Mapping[str, Any], parts: Iterable[Part]) -> JsonObject:
    """Returns the decision of a message about a question.

    Raises:
        InvalidParamsError: it is neither an approval nor a denial, and the question needs one.
    """
    parts = list(parts)
    data = next((_data_of(p) for p in parts if p.WhichOneof("content") == "data"), None)
    text = text_of(parts).strip()
    approved = data.get("approved") if isinstance(data, dict) else None
    if approved is None and data is None and question["kind"] not in ("interrupt",):
        word = text.lower().rstrip(".!")
        approved = True if word in _YES else False if word in _NO else None
    if isinstance(approved, bool):
        if not approved:
            return {"decision": "deny"}
        edited = data.get("arguments") if isinstance(data, dict) else None
        return {"decision": "approve"} if edited is None else {"decision": "approve", "arguments": edited}
    if question["kind"] in ("human", "interrupt"):
        return {"decision": "answer", "answer": text if data is None else data}
    raise InvalidParamsError(
        'The task needs "approve" or "deny", or data {"approved": true} or {"approved": false}.'
    )


# -- runs to tasks -------------------------------------------------------------------------------------------


def task_of(row: RunRow, history: int | None = None, *, with_artifacts: bool = True) -> Task:
    """Returns a run as a task.

    Args:
        history: how many messages it has; None: all.
    """
    task = Task(id=row.run_id, context_id=row.session_id, status=status_of(row))
    if history is None or history > 0:
        query = Part(text=row.request.get("query", ""))
        question = Message(message_id=f"{row.run_id}-query", role=Role.ROLE_USER, parts=[query])
        question.task_id, question.context_id = row.run_id, row.session_id
        task.history.append(question)
    if with_artifacts and row.status == "completed" and row.result:
        task.artifacts.append(answer_of(row.result))
    return task


def status_of(row: RunRow) -> TaskStatus:
    at = row.finished_at or row.created_at
    text = ""
    if row.status == "waiting":
        if questions := open_questions(row):
            return _waiting(row.run_id, row.session_id, questions, at)
        text = _asked_above(row)
    if row.status == "failed" and row.error is not None:
        text = public_failure(row.error)["detail"]
    return _status(row.run_id, row.session_id, _STATES[row.status], at, [Part(text=text)] if text else [])


def _asked_above(row: RunRow) -> str:
    """Returns where the question of a nested run is: at the run that has called it, or further up."""
    return f"The question is at the run {row.parent.partition('.')[0]!r}, which has called this one."


def _waiting(run_id: str, session: str, questions: Iterable[Mapping[str, Any]], at: float) -> TaskStatus:
    """Returns the status of a task that needs input: the question in words, and as data."""
    first = next(iter(questions))
    about = {key: first[key] for key in ("id", "kind", "name", "arguments")}
    words = first.get("question") or f"{first['name']}: {first['kind'].replace('_', ' ')}"
    data = Part()
    ParseDict({"data": orjson.loads(orjson.dumps(about, default=str))}, data)
    state = _STATES["waiting"]
    if first["kind"] == "identity":
        state = TaskState.TASK_STATE_AUTH_REQUIRED
    return _status(run_id, session, state, at, [Part(text=words), data])


def _status(run_id: str, session: str, state: TaskState, at: float, parts: list[Part]) -> TaskStatus:
    when = Timestamp()
    when.FromMilliseconds(int(at * 1000))
    status = TaskStatus(state=state, timestamp=when)
    if parts:
        name = TaskState.Name(state).removeprefix("TASK_STATE_").lower()
        status.message.CopyFrom(
            Message(
                message_id=f"{run_id}-{name}", role=Role.ROLE_AGENT, task_id=run_id, context_id=session,
                parts=parts,
            )
        )  # fmt: skip
    return status


def answer_of(result: Mapping[str, Any]) -> Artifact:
    """Returns the answer of a run: data where the agent has an output schema, else text."""
    part = Part(text=result["response"])
    if "output" in result:
        part = Part()
        ParseDict({"data": result["output"], "mediaType": "application/json"}, part)
    return Artifact(artifact_id=_ARTIFACT, name=_ARTIFACT, parts=[part])


class TaskEncoder:
    """Encodes the events of a run as updates of its task."""

    def __init__(self, row: RunRow) -> None:
        self._run_id, self._session = row.run_id, row.session_id
        self._text = AnswerText()
        self._sent_text = ""

    def __call__(self, event: Event) -> Iterable[TaskEvent]:
        yield from map(self._text_update, self._text.of(event))
        encode = getattr(self, "_" + event.type.replace(".", "_"), None)
        if encode is not None:
            yield from encode(event)

    def _run_started(self, event: Event) -> Iterable[TaskEvent]:
        yield self._update(_status(self._run_id, self._session, _STATES["running"], event.ts, []))

    _run_resumed = _run_started

    def _run_waiting(self, event: Event) -> Iterable[TaskEvent]:
        approval = event.data["approval"]
        questions = [one for one in (approval, *approval.get("others", ())) if one["kind"] != CLIENT_TOOL]
        yield self._update(_waiting(self._run_id, self._session, questions or [approval], event.ts))

    def _run_completed(self, event: Event) -> Iterable[TaskEvent]:
        yield from map(self._text_update, self._text.rest())
        if event.data["response"] != self._sent_text or "output" in event.data:
            yield self._artifact(answer_of(event.data), append=False)
        yield self._end("completed", event)

    def _run_failed(self, event: Event) -> Iterable[TaskEvent]:
        yield self._end("failed", event, public_failure(event.data)["detail"])

    def _run_cancelled(self, event: Event) -> Iterable[TaskEvent]:
        yield self._end("cancelled", event)

    def _end(self, status: str, event: Event, text: str = "") -> TaskEvent:
        parts = [Part(text=text)] if text else []
        return self._update(_status(self._run_id, self._session, _STATES[status], event.ts, parts))

    def _update(self, status: TaskStatus) -> TaskEvent:
        return TaskStatusUpdateEvent(task_id=self._run_id, context_id=self._session, status=status)

    def _text_update(self, text: str) -> TaskEvent:
        append, self._sent_text = bool(self._sent_text), self._sent_text + text
        return self._artifact(
            Artifact(artifact_id=_ARTIFACT, name=_ARTIFACT, parts=[Part(text=text)]), append
        )

    def _artifact(self, artifact: Artifact, append: bool) -> TaskEvent:
        return TaskArtifactUpdateEvent(
            task_id=self._run_id, context_id=self._session, artifact=artifact, append=append
        )
