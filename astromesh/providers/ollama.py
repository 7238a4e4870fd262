"""Ollama's native chat API. Format: https://docs.ollama.com/api/chat"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import orjson
from pydantic import Field

from astromesh.errors import ProviderRejected
from astromesh.net import provider_errors
from astromesh.net.stream_parsers import LineParser
from astromesh.providers.catalog import Price
from astromesh.providers.options import ModelOptions, capabilities_of
from astromesh.providers.service import Wire
from astromesh.providers.wire import (
    CALL_SIZE,
    FragmentCache,
    Reply,
    StreamReader,
    TokenCounts,
    arguments_object,
    arguments_of,
    parse_json,
    require_content,
    truncated_answer,
    with_schema_instruction,
)
from astromesh.tokens import utf8_size
from astromesh.types import CompletionRequest, JsonObject, Message, ToolCall

ENDPOINT = "http://localhost:11434"
#: parameters of the request itself; all others are the model's `options`
_TOP = frozenset({"keep_alive", "think", "format", "truncate", "logprobs", "top_logprobs"})
_FREE = Price()


class OllamaOptions(ModelOptions):
    """Options of `ollama`. Without `context_window`, sent as `num_ctx`, Ollama truncates prompts silently."""

    endpoint: str = Field(ENDPOINT, description="Base URL. Trusted, loopback included.")

    @property
    def priced(self) -> bool:
        """Whether the price is known: local models are free."""
        return True


class Ollama(Wire[OllamaOptions]):
    """The plugin `ollama`: requests and answers of one model."""

    Options = OllamaOptions
    kind, usual_endpoint = "ollama", ENDPOINT
    path = stream_path = "/api/chat"
    ping_path = "/api/version"

    def __init__(self, options: OllamaOptions) -> None:
        super().__init__(options)
        self.capabilities = capabilities_of(options)
        self.price = options.prices.get(options.model_name, _FREE)
        window = {"num_ctx": options.context_window} if options.context_window else {}
        self._parameters = {**window, **options.parameters}
        self._tools = FragmentCache(lambda tools: [tool.to_function() for tool in tools])

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {"model": self.model, "stream": stream}
        schema, messages = request.output_schema, request.messages
        if schema is not None and request.tools:  # a grammar would prevent tool calls
            messages = with_schema_instruction(request)
        if request.tools and request.tool_choice != "none":  # the API has no tool choice
            body["tools"] = self._tools.of(request.tools)
            schema = None
        body["messages"] = [encode_message(m) for m in messages]
        if schema is not None:
            body["format"] = dict(schema)
        _put(body, self._parameters)
        _put(body, request.parameters)
        return orjson.dumps(body)

    def token_counts(self, payload: Any) -> TokenCounts | None:
        return token_counts(payload)

    def decode(self, payload: Any) -> Reply:
        reader = self.reader()
        reader.add(reader.read_line({"done": True, "message": payload["message"], **payload}))
        return reader.reply()

    def reader(self) -> OllamaReader:
        return OllamaReader()


class OllamaReader(StreamReader):
    """Reads one stream of JSON lines."""

    def __init__(self) -> None:
        super().__init__(LineParser())
        self._calls: list[ToolCall] = []
        self._last_line: JsonObject = {}

    def reply(self) -> Reply:
        if not self.done:
            raise truncated_answer()
        calls = tuple(self._calls)
        reply = Reply(
            self._text.getvalue(),
            calls,
            _finish(self._last_line, calls),
            token_counts(self._last_line),
            self._last_line.get("model") or "",
        )
        return require_content(reply, self._last_line.get("done_reason"))

    def partial(self) -> Reply:
        return Reply(self._text.getvalue(), tuple(self._calls), "", token_counts(self._last_line))

    def read_event(self, data: bytes) -> str:
        return self.read_line(parse_json(data))

    def read_line(self, line: JsonObject) -> str:
        """Reads one line, or a whole answer, and returns its text."""
        if line.get("error"):
            raise provider_errors.from_body(line["error"])
        message = line.get("message") or {}
        for call in _calls(message):
            self.size += CALL_SIZE + utf8_size(call.arguments)
            self._calls.append(call)
        if line.get("done"):
            self.done, self._last_line = True, line
        return message.get("content") or ""


def encode_message(message: Message) -> JsonObject:
    encoded: JsonObject = {"role": message.role, "content": message.content}
    if message.role == "tool":
        encoded["tool_name"] = message.name
    if message.attachments:
        if not all(one.data and one.kind == "image" for one in message.attachments):
            raise ProviderRejected("Ollama accepts images as data, not as URLs, and no other attachments.")
        encoded["images"] = [image.data for image in message.attachments]
    if message.tool_calls:
        encoded["tool_calls"] = [
            {"function": {"name": c.name, "arguments": arguments_object(c.arguments)}}
            for c in message.tool_calls
        ]
    return encoded


def token_counts(payload: JsonObject) -> TokenCounts | None:
    """Returns the reported tokens. Ollama does not count a prompt in its cache."""
    return TokenCounts(payload.get("prompt_eval_count") or None, payload.get("eval_count"))


def _put(body: JsonObject, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if name in _TOP:
            body[name] = value
        else:
            body.setdefault("options", {})["num_predict" if name == "max_tokens" else name] = value


def _calls(message: JsonObject) -> tuple[ToolCall, ...]:
    """Returns the tool calls, with ids and with arguments as JSON text: Ollama sends neither."""
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
