"""Reads requests: headers, `Accept`, JSON bodies, and clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar, cast

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.types import Scope

from astromesh.api.errors import validation_detail
from astromesh.errors import InvalidInput
from astromesh.runtime.records import RunRequest
from astromesh.telemetry.traces import read_traceparent
from astromesh.text import CONTROL_CHARACTERS, is_blank

EVENT_STREAM = "text/event-stream"


_JSON = "application/json"


def wants_stream(accept: str) -> bool:
    """Whether server-sent events are asked for by name, and JSON is not preferred to them."""
    if accept == EVENT_STREAM:
        return True
    asked = accept.lower()
    if EVENT_STREAM not in asked:
        return False
    ranges = dict(map(_media_range, asked.split(",")))
    stream = ranges.get(EVENT_STREAM, 0.0)
    json = next((ranges[name] for name in (_JSON, "application/*", "*/*") if name in ranges), 0.0)
    return stream > 0.0 and stream >= json


def _media_range(text: str) -> tuple[str, float]:
    """A media range and its weight; one that is no number is none."""
    name, *parameters = (part.strip() for part in text.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            with suppress(ValueError):
                return name, min(max(float(value), 0.0), 1.0)
    return name, 1.0


# What the body of a request for a run holds.

#: a text of one line
SINGLE_LINE = f"^[^{CONTROL_CHARACTERS}]+$"


SessionId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=SINGLE_LINE)]


#: positions in logs and histories are 64-bit integers in every store
MAX_SEQ = 2**63 - 1


def _not_blank(query: str) -> str:
    if is_blank(query):
        raise PydanticCustomError("blank", "it must not be blank")
    return query


Query = Annotated[
    str, StringConstraints(min_length=1, max_length=100_000, pattern=r"\S"), AfterValidator(_not_blank)
]


class RunBody(BaseModel):
    """One message to an agent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: Query = Field(description="The user's message.", examples=["How do I reset my password?"])
    session_id: SessionId = Field(description="Names the conversation.", examples=["session-42"])
    context: dict[str, Any] = Field(default_factory=dict, description="Variables for the prompt template.")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Kept with the run, never shown to the model."
    )


# The headers of a request, read once. Starlette looks through all of them at each question.

#: where a scope keeps them
_HEADERS_KEY = "astromesh.headers"


#: what is read as a list here, so that its lines are one list (RFC 9110, 5.3)
_LISTS = frozenset({b"accept"})


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Names in lower case, as ASGI has them, and values; of those that stand more than once the first."""
    if _HEADERS_KEY not in scope:
        given = list(scope["headers"])
        read = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(given)}
        if len(read) < len(given):
            read.update(_joined_lists(given))
        scope[_HEADERS_KEY] = read
    return cast("Mapping[str, str]", scope[_HEADERS_KEY])


def _joined_lists(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    said: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name in _LISTS:
            said.setdefault(name, []).append(value)
    return {name.decode(): b", ".join(values).decode("latin-1") for name, values in said.items()}


# Bounded request bodies and clients that go away.

T = TypeVar("T")


_RUN: TypeAdapter[RunBody] = TypeAdapter(RunBody)


#: where in a request's state its body is
BODY_STATE = "body"


#: what orjson says of bytes that are no text; its place is always the first
_NOT_UTF_8 = "not valid UTF-8"


async def raw_body(request: Request) -> bytes:
    """The body, as it was taken in."""
    body = request.scope.get("state", {}).get(BODY_STATE)
    return body if isinstance(body, bytes) else await request.body()


async def read_body(request: Request, adapter: TypeAdapter[T]) -> T:
    """The validated body. Raises: InvalidInput: which field is wrong and how."""
    raw = await raw_body(request)
    try:
        return adapter.validate_python(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        what = "not UTF-8, as JSON must be" if _NOT_UTF_8 in str(error) else f"not JSON: {error}"
        raise InvalidInput(f"The body is {what}.") from error
    except ValidationError as error:
        raise InvalidInput(validation_detail(error.errors(include_url=False, include_input=False))) from error


async def read_run_request(request: Request) -> RunRequest:
    """What the body of a run asks for. Raises: InvalidInput."""
    body = await read_body(request, _RUN)
    cause = read_traceparent(headers_of(request.scope).get("traceparent"))
    return RunRequest(body.query, body.session_id, body.context, body.metadata, caused_by=cause)


class ClientDisconnected(Exception):
    """The client closed the connection before its answer was there."""


#: seconds after which a request starts to look whether its client is still there
_WATCH_AFTER_SECONDS = 0.1


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`, cancelling it when the client goes away. Fast work never pays for the watching.

    Raises:
        ClientGone: instead of the cancellation that it caused itself.
    """
    loop = asyncio.get_running_loop()
    current: asyncio.Task[Any] | None = asyncio.current_task()
    assert current is not None
    watch: list[asyncio.Task[None]] = []
    gone = False

    async def look() -> None:
        nonlocal gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        current.cancel()

    timer = loop.call_later(_WATCH_AFTER_SECONDS, lambda: watch.append(loop.create_task(look())))
    try:
        return await work
    except asyncio.CancelledError:
        if gone and current.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        timer.cancel()
        for task in watch:
            task.cancel()
