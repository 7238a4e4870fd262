"""`type: webhook`: an HTTP endpoint that the operator configured, called with the model's arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from yarl import URL

from astromesh.errors import NetError, NetTimeout, ToolFailed, ToolTimeout
from astromesh.net.http import Http, HttpResponse, is_http
from astromesh.plugins import Deps
from astromesh.telemetry.ids import outgoing_traceparent
from astromesh.tools.base import ToolContext
from astromesh.types import ToolSpec

#: a policy limits the time of a call; this limit only ends calls without one
_SECONDS = 3600.0
#: characters of an error's body that the model receives
_SHOWN = 1000
#: shorter header values are words like `1` and are no secrets
_SECRET_LENGTH = 8


class WebhookTool:
    """Sends the arguments as JSON body or query; returns the response as JSON value or text."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        endpoint: str = Field(description="The URL, http or https. Loopback and private hosts are allowed.")
        method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = Field("POST", description="HTTP method.")
        headers: dict[str, SecretStr] = Field(
            default_factory=dict, description="Headers of every call; their values are kept secret."
        )
        send: Literal["json", "query"] | None = Field(
            None, description="Where the arguments go; absent: query for GET and DELETE, else a JSON body."
        )
        send_metadata: bool = Field(
            False,
            description="Send metadata and tags of the run as JSON, in the headers x-astromesh-metadata and "
            "x-astromesh-tags.",
        )
        max_response_bytes: int = Field(1_048_576, ge=1, description="Most bytes of a response.")

        @field_validator("endpoint")
        @classmethod
        def _is_http(cls, endpoint: str) -> str:
            if not is_http(endpoint):
                raise ValueError("must be an http or https URL with a host")
            return endpoint

    def __init__(self, options: Options, http: Http) -> None:
        self.spec = ToolSpec("webhook", "", {"type": "object", "properties": {}}, "external")
        self._http = http
        self._method = options.method
        self._url = URL(options.endpoint)
        self._headers = {name: value.get_secret_value() for name, value in options.headers.items()}
        self._query = (
            options.send or ("query" if options.method in ("GET", "DELETE") else "json")
        ) == "query"
        self._limit, self._sends_metadata = options.max_response_bytes, options.send_metadata

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> WebhookTool:
        return cls(options, deps.http)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Raises: ToolTimeout, ToolFailed: no response, or one that is an error, too large or not text."""
        headers = {"accept": "application/json, text/*;q=0.9", **self._headers}
        if header := outgoing_traceparent(context.call_id):
            headers.setdefault("traceparent", header)
        if context.idempotency_key:
            headers["idempotency-key"] = context.idempotency_key
        if self._sends_metadata:
            # ASCII: a header has no other letters
            headers["x-astromesh-metadata"] = json.dumps(dict(context.metadata))
            headers["x-astromesh-tags"] = json.dumps(list(context.tags))
        url, body = self._url, None
        if self._query:
            url = url.extend_query(_query(arguments))
        else:
            body = orjson.dumps(arguments)
            headers.setdefault("content-type", "application/json")
        try:
            # the request-forgery guard checks redirects to another host, and they carry no credentials
            answer = await self._http.request(
                self._method, url, body=body, headers=headers, timeout=_SECONDS, limit=self._limit,
                follow=True, resend=bool(context.idempotency_key),
            )  # fmt: skip
        except NetTimeout as error:
            raise ToolTimeout(str(error)) from error
        except NetError as error:
            raise ToolFailed(str(error)) from error
        return self._read(answer)

    def _read(self, answer: HttpResponse) -> Any:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        text = self._text(answer, kind)
        if not 200 <= answer.status < 300:
            raise ToolFailed(f"{self._url.host} answered HTTP {answer.status}. {text[:_SHOWN]}".strip())
        if not text:
            return {"status": answer.status}
        if kind == "application/json" or kind.endswith("+json"):
            return _json(text)
        return text

    def _text(self, answer: HttpResponse, kind: str) -> str:
        try:
            text = answer.body.decode(_charset(answer.headers.get("content-type", "")))
        except (UnicodeDecodeError, LookupError) as error:
            raise ToolFailed(
                f"{self._url.host} answered HTTP {answer.status} with {len(answer.body)} bytes of "
                f"{kind or 'an unknown type'}, which is not text."
            ) from error
        for secret in self._headers.values():  # some servers echo the request
            if len(secret) >= _SECRET_LENGTH:
                text = text.replace(secret, "***")
        return text


def _query(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns query pairs: lists as repeated keys, objects as JSON, without null."""
    pairs = (
        (key, one)
        for key, value in arguments.items()
        for one in (value if isinstance(value, list) else [value])
    )
    return [
        (key, one if isinstance(one, str) else orjson.dumps(one).decode())
        for key, one in pairs
        if one is not None
    ]


def _charset(content_type: str) -> str:
    _, _, charset = content_type.lower().partition("charset=")
    return charset.partition(";")[0].strip(" \"'") or "utf-8"


def _json(text: str) -> Any:
    """Returns the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
