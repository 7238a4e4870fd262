"""`type: a2a`: an agent of another system, reached over A2A 1.0."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.helpers import get_data_parts, get_text_parts
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from astromesh.errors import ToolFailed, ToolTimeout
from astromesh.net.http import is_http
from astromesh.plugins import Deps
from astromesh.telemetry.ids import outgoing_traceparent
from astromesh.text import with_integers
from astromesh.tools.base import ToolContext
from astromesh.types import JsonObject, ToolSpec

#: a policy limits the time of a call; this limit only ends requests without one
_SECONDS = 3600.0
#: seconds between two questions for a task that goes on
_POLL_SECONDS = 1.0
_WAITING = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)
_FAILED = (TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED, TaskState.TASK_STATE_REJECTED)
_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The message, with all that the agent must know."},
        "task_id": {
            "type": "string",
            "description": "The task that has asked for more input; absent: the message begins a new one.",
        },
    },
    "required": ["message"],
}


class A2ATool:
    """Sends a message to a remote agent, and returns the result of its task.

    A task that needs input is no failure: the model receives the question, and answers with `task_id`.
    """

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        url: str = Field(
            description="Of the agent, http or https; its card is at /.well-known/agent-card.json below it."
        )
        headers: dict[str, SecretStr] = Field(
            default_factory=dict, description="Headers of every request; their values are kept secret."
        )

        @field_validator("url")
        @classmethod
        def _is_http(cls, url: str) -> str:
            if not is_http(url):
                raise ValueError("must be an http or https URL with a host")
            return url

    def __init__(self, options: Options, http: httpx.AsyncClient) -> None:
        self.spec = ToolSpec("a2a", "Asks a remote agent.", _PARAMETERS, "external")
        self._url = options.url.rstrip("/")
        self._headers = {name: value.get_secret_value() for name, value in options.headers.items()}
        self._http = http
        self._client: Client | None = None

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> A2ATool:
        """Asks for the card with the first call, so that a remote agent may start later."""
        return cls(options, await deps.resources.shared(A2ATool, lambda: httpx.AsyncClient(timeout=_SECONDS)))

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Raises: ToolTimeout, ToolFailed: no answer, or a task that has failed or was rejected."""
        traced = {"traceparent": header} if (header := outgoing_traceparent(context.call_id)) else {}
        call = ClientCallContext(service_parameters={**traced, **self._headers})
        message = Message(
            message_id=context.idempotency_key or uuid4().hex, role=Role.ROLE_USER,
            parts=[Part(text=arguments["message"])], task_id=arguments.get("task_id", ""),
        )  # fmt: skip
        try:
            client = await self._connected()
            return await self._send(client, message, call)
        except httpx.TimeoutException as error:
            raise ToolTimeout(f"{self._url} did not answer in time.") from error
        except (A2AError, httpx.HTTPError) as error:
            raise ToolFailed(f"{self._url}: {error}") from error

    async def _connected(self) -> Client:
        if self._client is None:
            resolver = A2ACardResolver(self._http, self._url)
            card = await resolver.get_agent_card(http_kwargs={"headers": self._headers})
            origin = _origin(self._url)
            if any(_origin(one.url) != origin for one in card.supported_interfaces):
                # it would get the headers, or lead to a host that only this server reaches
                raise ToolFailed(f"The agent card of {self._url} names another server.")
            bindings = ["JSONRPC", "HTTP+JSON"]
            config = ClientConfig(
                streaming=False, httpx_client=self._http, supported_protocol_bindings=bindings
            )
            self._client = ClientFactory(config).create(card)
        return self._client

    async def _send(self, client: Client, message: Message, call: ClientCallContext) -> Any:
        async for response in client.send_message(SendMessageRequest(message=message), context=call):
            if response.HasField("message"):
                return _content(response.message.parts)
            return await self._result(client, response.task, call)
        raise ToolFailed(f"{self._url} answered nothing.")

    async def _result(self, client: Client, task: Task, call: ClientCallContext) -> Any:
        try:
            while task.status.state in (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING):
                await asyncio.sleep(_POLL_SECONDS)
                task = await client.get_task(GetTaskRequest(id=task.id), context=call)
        except asyncio.CancelledError:
            with suppress(A2AError, httpx.HTTPError):
                await client.cancel_task(CancelTaskRequest(id=task.id), context=call)
            raise
        text = _content(task.status.message.parts)
        if task.status.state in _FAILED:
            state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
            raise ToolFailed(f"The task of {self._url} is {state}. {text}".strip())
        if task.status.state in _WAITING:
            return {"state": "input_required", "task_id": task.id, "question": text}
        parts = [part for artifact in task.artifacts for part in artifact.parts]
        return _content(parts) or text


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def _content(parts: Any) -> Any:
    """Returns the text of parts, or the data of one that has data and no text."""
    texts, data = get_text_parts(parts), get_data_parts(parts)
    return with_integers(data[0]) if data and not texts else "\n".join(texts)
