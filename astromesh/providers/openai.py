"""OpenAI chat completions, and every service that speaks them: vLLM, llama.cpp, TGI, LM Studio, gateways.

Format: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

import orjson
from msgspec.structs import replace
from pydantic import Field

from astromesh.net import provider_errors
from astromesh.net.stream_parsers import SseParser
from astromesh.providers.entra import EntraOptions, EntraWire
from astromesh.providers.options import capabilities_of
from astromesh.providers.wire import (
    CALL_SIZE,
    FragmentCache,
    Reply,
    StreamReader,
    TokenCounts,
    arguments_of,
    latest_counts,
    pack_model_state,
    parse_json,
    require_content,
    text_of,
    truncated_answer,
    unpack_model_state,
    with_schema_instruction,
)
from astromesh.text import TextBuffer
from astromesh.tokens import utf8_size
from astromesh.types import Attachment, CompletionRequest, JsonObject, Message, ToolCall

# -- reading answers -----------------------------------------------------------------------------------------

_FINISH = {"tool_calls": "tool_calls", "length": "length", "content_filter": "content_filter"}


class OpenAIReader(StreamReader):
    """Reads one stream of `chat.completion.chunk` events.

    Args:
        owner: the model to which its reasoning is sent back; empty if it is not.
    """

    def __init__(self, owner: str = "") -> None:
        super().__init__(SseParser())
        self._owner = owner
        self._reasoning = TextBuffer()
        self._calls: list[_GrowingCall] = []
        self._indices: set[Any] = set()
        #: index of the answer that is read, of several (`n`)
        self._choice: int | None = None
        self._finish = self._model = ""
        self._refused = False
        self._counts: TokenCounts | None = None

    def reply(self) -> Reply:
        if not (self.done or self._finish):
            raise truncated_answer()
        calls = tuple(call.finished() for call in sorted(self._calls, key=_place))
        calls = _with_reasoning(calls, self._owner, self._reasoning.getvalue())
        reason = "content_filter" if self._refused else _finish(self._finish, bool(calls))
        reply = Reply(self._text.getvalue(), calls, reason, self._counts, self._model)
        return require_content(reply, self._finish)

    def partial(self) -> Reply:
        calls = tuple(call.partial() for call in self._calls)
        return Reply(self._text.getvalue(), calls, "", self._counts)

    def read_event(self, data: bytes) -> str:
        """Reads an event and returns its text; events after the end are ignored."""
        if self.done or data == b"[DONE]":
            self.done = True
            return ""
        event = parse_json(data)
        if not self._model:
            self._model = event.get("model") or ""
        if usage := event.get("usage"):
            self._counts = latest_counts(token_counts(usage), self._counts)
        text, choices = "", event.get("choices")
        if choices and self._choice is None:
            self._choice = min(map(_index, choices))
        for choice in choices or ():
            if (choice.get("index") or 0) == self._choice:
                text += self._read_choice(choice)
        if error := event.get("error"):
            raise provider_errors.from_body(error)
        return text

    def _read_choice(self, choice: JsonObject) -> str:
        delta = choice.get("delta") or {}
        for piece in delta.get("tool_calls") or ():
            self._extend_call(piece)
        _raise_fault(choice)
        self._finish = choice.get("finish_reason") or self._finish
        if self._owner and isinstance(thought := delta.get("reasoning_content"), str):
            self.size += utf8_size(thought)
            self._reasoning.write(thought)
        refusal = delta.get("refusal")
        self._refused = self._refused or bool(refusal)
        content = delta.get("content") or refusal
        return content if isinstance(content, str) else text_of(content)

    def _extend_call(self, piece: JsonObject) -> None:
        call = self._call_of(piece)
        function = piece.get("function") or {}
        call.id = piece.get("id") or call.id
        if name := function.get("name"):
            self.size += len(name)
            call.add_name(name)
        if arguments := arguments_of(function.get("arguments"), ""):
            self.size += utf8_size(arguments)
            call.arguments.append(arguments)

    def _call_of(self, piece: JsonObject) -> _GrowingCall:
        index = piece.get("index")
        if index is None:  # some servers send no index: a new id is a new call
            fresh = bool(piece.get("id")) and all(c.id != piece["id"] for c in self._calls)
            index = len(self._calls) - (0 if fresh or not self._calls else 1)
        if index in self._indices:
            for call in reversed(self._calls):
                if call.index == index and not call.ended_by(piece):
                    return call
        self.size += CALL_SIZE
        self._indices.add(index)
        self._calls.append(_GrowingCall(index))
        return self._calls[-1]


class _GrowingCall:
    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: Any) -> None:
        self.index, self.id, self.name = index, "", ""
        self.arguments: list[str] = []

    def ended_by(self, piece: JsonObject) -> bool:
        """Whether a piece begins another call.

        Some servers give every call of a turn the same index: another id with a name is another call. Others
        send a new id with every piece, but name the call once.
        """
        name = (piece.get("function") or {}).get("name")
        return bool(name and self.id and piece.get("id") and piece["id"] != self.id)

    def add_name(self, piece: Any) -> None:
        """Adds a piece of the name. Some servers repeat the name in every piece, others split it."""
        if self.arguments:
            self.name = self.name or piece
        else:
            self.name = piece if piece.startswith(self.name) else self.name + piece

    def partial(self) -> ToolCall:
        return ToolCall(self.id, self.name, "".join(self.arguments))

    def finished(self) -> ToolCall:
        return _call(self.id, {"name": self.name, "arguments": "".join(self.arguments)})


def token_counts(usage: Any, prompt: str = "prompt", answer: str = "completion") -> TokenCounts | None:
    """Returns the reported tokens; None if the server reports none.

    Args:
        usage: as the server sends it.
        prompt: what the format calls the tokens that the model reads.
        answer: what it calls those that the model writes.
    """
    if not usage:
        return None
    read = usage.get(f"{prompt}_tokens_details") or {}
    written = usage.get(f"{answer}_tokens_details") or {}
    return TokenCounts(
        usage.get(f"{prompt}_tokens"),
        usage.get(f"{answer}_tokens"),
        read.get("cached_tokens") or 0,
        read.get("cache_write_tokens") or 0,
        written.get("reasoning_tokens") or 0,
    )


def _finish(reason: str | None, calls: bool) -> str:
    return "tool_calls" if calls else _FINISH.get(reason or "", "stop")


def _raise_fault(choice: JsonObject) -> None:
    """Raises: ProviderError: the answer broke off behind a gateway, which tells it in the choice."""
    if error := choice.get("error"):
        raise provider_errors.from_body(error)
    if choice.get("finish_reason") == "error":
        raise truncated_answer()


def _call(call_id: Any, function: JsonObject) -> ToolCall:
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise TypeError("a tool call without a name")
    call_id = call_id if isinstance(call_id, str) else ""
    return ToolCall(call_id or f"call_{uuid4().hex}", name, arguments_of(function.get("arguments")))


def _with_reasoning(calls: tuple[ToolCall, ...], owner: str, reasoning: Any) -> tuple[ToolCall, ...]:
    """Returns the calls of an answer; the first one has the reasoning that led to them."""
    if not (calls and owner and reasoning and isinstance(reasoning, str)):
        return calls
    return (replace(calls[0], kept=pack_model_state(owner, reasoning)), *calls[1:])


def _index(choice: JsonObject) -> int:
    return choice.get("index") or 0


def _place(call: _GrowingCall) -> int:
    return call.index if isinstance(call.index, int) else 0


# -- JSON Schema for constrained decoding --------------------------------------------------------------------
# Every object is closed and requires all its properties; few keywords are allowed.
# Source: https://platform.openai.com/docs/guides/structured-outputs

_STRICT_KEYWORDS = frozenset(
    {
        "type", "title", "description", "enum", "const", "required", "properties", "additionalProperties",
        "items", "anyOf", "$ref", "$defs", "definitions", "pattern", "format", "multipleOf", "minimum",
        "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems",
    }
)  # fmt: skip
_STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
#: says nothing about a value; left out
_ANNOTATIONS = frozenset({"$schema", "$id"})


def strict_schema(schema: Mapping[str, Any]) -> JsonObject | None:
    """Returns a schema with every object closed, None if `strict` does not allow it.

    What fits the result fits the schema. Properties that may be missing are not made required: a model would
    have to invent them.
    """
    try:
        strict = _strict(schema)
    except _NotStrict:
        return None
    return strict if strict.get("type") == "object" else None


class _NotStrict(ValueError):
    pass


def _strict(schema: Any) -> JsonObject:
    if not isinstance(schema, Mapping) or not schema.keys() <= _STRICT_KEYWORDS | _ANNOTATIONS:
        raise _NotStrict
    result: JsonObject = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    for key in ("properties", "$defs", "definitions"):
        if key in schema:
            result[key] = {name: _strict(inner) for name, inner in schema[key].items()}
    if "items" in schema:
        result["items"] = _strict(schema["items"])
    if "anyOf" in schema:
        result["anyOf"] = [_strict(inner) for inner in schema["anyOf"]]
    if not _is_definite(schema, result):
        raise _NotStrict
    if _is_object(result):
        result["additionalProperties"] = False
    return result


def _is_definite(schema: Mapping[str, Any], result: JsonObject) -> bool:
    """Whether every value has a type, every array its items, every object all and only its properties."""
    if not result.keys() & {"type", "anyOf", "enum", "const", "$ref"}:
        return False
    if "array" in _types(result) and "items" not in result:
        return False
    if result.get("format", "uuid") not in _STRICT_FORMATS:
        return False
    if not _is_object(result):
        return True
    properties, required = result.get("properties", {}), schema.get("required", ())
    return bool(properties) and set(required) == properties.keys() and not schema.get("additionalProperties")


def _is_object(schema: JsonObject) -> bool:
    return "object" in _types(schema) or "properties" in schema


def _types(schema: JsonObject) -> tuple[Any, ...]:
    kind = schema.get("type", ())
    return (kind,) if isinstance(kind, str) else tuple(kind)


ENDPOINT = "https://api.openai.com/v1"
Structured = Literal["json_schema", "json_object", "none"]
PLAIN_CHOICES = ("auto", "none", "required")


class OpenAIKeys(EntraOptions):
    """Options of every wire format of OpenAI. The defaults fit OpenAI itself."""

    usual_variable, usual_endpoints = "OPENAI_API_KEY", (ENDPOINT,)

    structured_output: Structured = Field(
        "json_schema",
        description="How an output schema is requested: by JSON Schema, by JSON mode, or only in the prompt.",
    )


class OpenAIOptions(OpenAIKeys):
    """Options of `openai`."""

    api_version: str = Field(
        "",
        pattern=r"^[\w.-]*$",
        description="Version of Azure's API, e.g. 2024-10-21. `model` then names a deployment, `endpoint` "
        "the resource. Azure's newer endpoints (…/openai/v1) need no version.",
    )
    reasoning_in_tool_loop: Literal["auto", "never"] = Field(
        "auto",
        description="`reasoning_content` of an answer that calls tools: `auto` sends it back with the "
        "results of these calls, and in no later run; `never` is for services that reject it.",
    )
    stream_usage: bool = Field(
        True, description="Request token counts at the end of a stream; some older servers reject this."
    )


class OpenAI(EntraWire[OpenAIOptions]):
    """The plugin `openai`: requests and answers of one model."""

    Options = OpenAIOptions
    kind, usual_endpoint = "openai", ENDPOINT

    def __init__(self, options: OpenAIOptions) -> None:
        super().__init__(options)
        self.capabilities = capabilities_of(options, json=options.structured_output != "none")
        self.path, self.ping_path = _paths(options)
        self.stream_path = self.path
        self._structured = options.structured_output
        self._azure = bool(options.api_version)
        #: OpenAI's own endpoint has another name for `max_tokens`, as services whose block uses it do
        self._official = self.endpoint == ENDPOINT
        #: with a schema, many other servers prevent tool calls, or reject tools
        self._schema_with_tools = self._official or self._azure
        self._newer_limit = "max_completion_tokens" in options.parameters
        self._parameters = self._renamed(options.parameters)
        self._stream: JsonObject = {"stream": True}
        if options.stream_usage:
            self._stream["stream_options"] = {"include_usage": True}
        self._tools = FragmentCache(lambda tools: [tool.to_function() for tool in tools])
        #: the model to which its reasoning goes back; empty if it does not
        self._owner = f"openai/{self.model}" if options.reasoning_in_tool_loop == "auto" else ""

    def key_headers(self, key: str) -> dict[str, str]:
        return {"api-key": key} if key and self._azure else super().key_headers(key)

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {"model": self.model}
        if request.tools:
            body["tools"] = self._tools.of(request.tools)
            if request.tool_choice != "auto":
                body["tool_choice"] = _tool_choice(request.tool_choice)
        messages = request.messages
        if request.output_schema is not None and self._needs_words(request):
            messages = with_schema_instruction(request)
        body["messages"] = [encode_message(m) for m in messages]
        if self._owner:
            self._send_reasoning_back(messages, body["messages"])
        body.update(self._parameters)
        if request.parameters:
            body.update(self._renamed(request.parameters))
        if request.output_schema is not None:
            self._ask_for_json(body, request)
        if stream:
            body.update(self._stream)
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        choice = min(payload["choices"], key=_index)
        _raise_fault(choice)
        message = choice["message"]
        calls: tuple[ToolCall, ...] = ()
        if tool_calls := message.get("tool_calls"):
            calls = tuple(_call(c.get("id"), c["function"]) for c in tool_calls)
            calls = _with_reasoning(calls, self._owner, message.get("reasoning_content"))
        refusal, reason = message.get("refusal"), choice.get("finish_reason")
        reply = Reply(
            text_of(message.get("content")) or text_of(refusal),
            calls,
            "content_filter" if refusal else _finish(reason, bool(calls)),
            token_counts(payload.get("usage")),
            payload.get("model") or "",
        )
        return require_content(reply, reason)

    def token_counts(self, payload: Any) -> TokenCounts | None:
        return token_counts(payload["usage"])

    def reader(self) -> OpenAIReader:
        return OpenAIReader(self._owner)

    def _send_reasoning_back(self, messages: Sequence[Message], encoded: list[JsonObject]) -> None:
        """Adds its own reasoning to the calls of the tool loop: those behind the last message of the user."""
        for message, body in zip(reversed(messages), reversed(encoded), strict=True):
            if message.role == "user":
                return
            if message.tool_calls and (text := unpack_model_state(message.tool_calls[0], self._owner)):
                body["reasoning_content"] = text

    def _renamed(self, parameters: Mapping[str, Any]) -> JsonObject:
        renamed = dict(parameters)
        if (self._official or self._newer_limit) and "max_tokens" in renamed:
            renamed.setdefault("max_completion_tokens", renamed.pop("max_tokens"))
        return renamed

    def _needs_words(self, request: CompletionRequest) -> bool:
        """Whether the words of the prompt must ask for the output schema."""
        return self._structured != "json_schema" or bool(request.tools and not self._schema_with_tools)

    def _ask_for_json(self, body: JsonObject, request: CompletionRequest) -> None:
        if request.tools and request.tool_choice != "none" and not self._schema_with_tools:
            return
        if self._structured == "json_schema":
            schema = request.output_schema or {}
            strict = strict_schema(schema)
            form: JsonObject = {"name": "answer", "schema": dict(schema) if strict is None else strict}
            if strict is not None:
                form["strict"] = True
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        elif self._structured == "json_object":
            body["response_format"] = {"type": "json_object"}


def _paths(options: OpenAIOptions) -> tuple[str, str]:
    """Returns the paths of chats and of the list of models, below the endpoint.

    Azure: https://learn.microsoft.com/azure/ai-services/openai/reference
    """
    if not options.api_version:
        return "/chat/completions", "/models"
    base = "" if options.endpoint.rstrip("/").endswith("/openai") else "/openai"
    version = f"api-version={options.api_version}"
    deployment = f"{base}/deployments/{quote(options.model_name, safe='')}"
    return f"{deployment}/chat/completions?{version}", f"{base}/models?{version}"


def encode_message(message: Message) -> JsonObject:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if message.tool_calls:
        return {
            "role": message.role,
            "content": message.content or None,
            "tool_calls": [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in message.tool_calls
            ],
        }
    if message.attachments:
        parts: list[JsonObject] = [{"type": "text", "text": message.content}] if message.content else []
        parts += map(_attached, message.attachments)
        return {"role": message.role, "content": parts}
    return {"role": message.role, "content": message.content}


def _attached(one: Attachment) -> JsonObject:
    if one.kind == "audio":
        form = "wav" if one.media_type == "audio/wav" else "mp3"
        return {"type": "input_audio", "input_audio": {"data": one.data, "format": form}}
    if one.kind == "file":
        return {"type": "file", "file": {"filename": one.name or "file.pdf", "file_data": image_url(one)}}
    return {"type": "image_url", "image_url": {"url": image_url(one)}}


def image_url(image: Attachment) -> str:
    return image.url or f"data:{image.media_type};base64,{image.data}"


def _tool_choice(choice: str) -> object:
    return choice if choice in PLAIN_CHOICES else {"type": "function", "function": {"name": choice}}
