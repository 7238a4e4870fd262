"""Ollama's native chat API. Format: https://docs.ollama.com/api/chat"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import orjson
from pydantic import Field

from astromesh.abc.deps import Deps
from astromesh.errors import ProviderRejected
from astromesh.growing import GrowingText
from astromesh.net import faults
from astromesh.net.ndjson import LineParser
from astromesh.providers.catalog import capabilities_of
from astromesh.providers.encoding import FragmentCache
from astromesh.providers.options import ModelOptions, Price, read_key
from astromesh.providers.pairs import Pairs, loads
from astromesh.providers.service import (
    CALL_SIZE,
    Counted,
    Reply,
    ServiceProvider,
    arguments_of,
    cut,
    meant,
    service_of,
    told_in_words,
)
from astromesh.tokens import size_of
from astromesh.types import CompletionRequest, JsonObject, Message, ToolCall

ENDPOINT = "http://localhost:11434"
#: parameters of the request itself; all others are the model's `options`
_TOP = frozenset({"keep_alive", "think", "format", "truncate", "logprobs", "top_logprobs"})
_FREE = Price()


class OllamaOptions(ModelOptions):
    """Options of `ollama`. `context_window` is sent as `num_ctx`: without it Ollama cuts prompts silently."""

    endpoint: str = Field(ENDPOINT, description="Base URL. Trusted, loopback included.")


class Ollama:
    """The plugin `ollama`."""

    Options = OllamaOptions

    @classmethod
    async def open(cls, options: OllamaOptions, deps: Deps) -> ServiceProvider:
        """Opens nothing: calls go over the shared session.

        Raises:
            MissingKey: the key that the block names is not set.
            ConfigError: no model, or no usable endpoint.
        """
        key = read_key(options, deps.config_dir)
        service = service_of(
            options,
            "ollama",
            ENDPOINT,
            {"authorization": f"Bearer {key}"} if key else {},
            capabilities=capabilities_of(options, priced=True),
            price=options.prices.get(options.chosen, _FREE),
        )
        return ServiceProvider(service, OllamaWire(options), deps.http)


class OllamaWire:
    """Requests and answers of one model.

    Args:
        options: of the block.
    """

    path = stream_path = "/api/chat"
    ping_path = "/api/version"

    def __init__(self, options: OllamaOptions) -> None:
        self._model = options.chosen
        window = {"num_ctx": options.context_window} if options.context_window else {}
        self._parameters = {**window, **options.parameters}
        self._tools = FragmentCache(lambda tools: [tool.to_function() for tool in tools])

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {"model": self._model, "stream": stream}
        schema, messages = request.output_schema, request.messages
        if schema is not None and request.tools:  # held to a grammar, it could call none
            messages = told_in_words(request)
        if request.tools and request.tool_choice != "none":  # the API knows no other choice than the model's
            body["tools"] = self._tools.of(request.tools)
            schema = None
        body["messages"] = [encode_message(m) for m in messages]
        if schema is not None:
            body["format"] = dict(schema)
        _put(body, self._parameters)
        _put(body, request.parameters)
        return orjson.dumps(body)

    def counted(self, payload: Any) -> Counted | None:
        return counted(payload)

    def decode(self, payload: Any) -> Reply:
        message = payload["message"]
        if not payload.get("done", True):
            raise cut()
        calls = _calls(message)
        reply = Reply(_text(message), calls, _finish(payload, calls), counted(payload))
        return meant(reply, payload.get("done_reason"))

    def reader(self) -> OllamaReader:
        return OllamaReader()


class OllamaReader:
    """Reads one stream of JSON lines."""

    def __init__(self) -> None:
        self.done = False
        self.size = 0
        self._lines = LineParser()
        self._pairs = Pairs()
        self._text = GrowingText()
        self._calls: list[ToolCall] = []
        self._last: JsonObject = {}

    def feed(self, chunk: bytes) -> Iterator[str]:
        for line in self._lines.feed(chunk):
            if text := self._take(loads(line)):
                yield text

    def finish(self) -> Reply:
        for line in self._lines.finish():
            self._take(loads(line))
        if not self.done:
            raise cut()
        calls = tuple(self._calls)
        reply = Reply(self._text.getvalue(), calls, _finish(self._last, calls), counted(self._last))
        return meant(reply, self._last.get("done_reason"))

    def so_far(self) -> Reply:
        return Reply(self._text.getvalue(), tuple(self._calls), "", counted(self._last))

    def _take(self, line: JsonObject) -> str:
        if line.get("error"):
            raise faults.from_body(line["error"])
        message = line.get("message") or {}
        for call in _calls(message):
            self.size += CALL_SIZE + size_of(call.arguments)
            self._calls.append(call)
        if line.get("done"):
            self.done, self._last = True, line
        text = self._pairs.feed(_text(message))
        self.size += size_of(text)
        self._text.write(text)
        return text


def encode_message(message: Message) -> JsonObject:
    encoded: JsonObject = {"role": message.role, "content": message.content}
    if message.role == "tool":
        encoded["tool_name"] = message.name
    if message.images:
        if not all(image.data for image in message.images):
            raise ProviderRejected("Ollama takes pictures as data, not as URLs.")
        encoded["images"] = [image.data for image in message.images]
    if message.tool_calls:
        encoded["tool_calls"] = [
            {"function": {"name": c.name, "arguments": _object(c.arguments)}} for c in message.tool_calls
        ]
    return encoded


def counted(payload: JsonObject) -> Counted | None:
    """It does not count, e.g., a prompt that it had in its cache."""
    return Counted(payload.get("prompt_eval_count") or None, payload.get("eval_count"))


def _put(body: JsonObject, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if name in _TOP:
            body[name] = value
        else:
            body.setdefault("options", {})["num_predict" if name == "max_tokens" else name] = value


def _text(message: JsonObject) -> str:
    text = message.get("content") or ""
    if not isinstance(text, str):
        raise TypeError("content that is no text")
    return text


def _calls(message: JsonObject) -> tuple[ToolCall, ...]:
    """Ollama's calls have no ids, and mostly arguments that are parsed already: made as everywhere else."""
    return tuple(
        ToolCall(
            call.get("id") or f"call_{uuid4().hex}",
            call["function"]["name"],
            arguments_of(call["function"].get("arguments")),
        )
        for call in message.get("tool_calls") or ()
    )


def _finish(payload: JsonObject, calls: tuple[ToolCall, ...]) -> str:
    if calls:
        return "tool_calls"
    return "length" if payload.get("done_reason") == "length" else "stop"


def _object(arguments: str) -> JsonObject:
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"invalid": arguments}
