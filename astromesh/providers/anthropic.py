"""Anthropic's messages API. Format: https://docs.claude.com/en/api/messages"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import orjson
from pydantic import Field

from astromesh.errors import ProviderRejected
from astromesh.net import provider_errors
from astromesh.net.stream_parsers import SseParser
from astromesh.providers.options import ModelOptions
from astromesh.providers.service import Wire
from astromesh.providers.wire import (
    CALL_SIZE,
    FragmentCache,
    Reply,
    StreamReader,
    TokenCounts,
    alternating_turns,
    arguments_object,
    close_objects,
    has_foreign_calls,
    input_of,
    json_instruction,
    parse_json,
    renamed,
    require_content,
    sum_counts,
    thoughtful_parts,
    truncated_answer,
    with_thoughts,
)
from astromesh.text import TextBuffer
from astromesh.tokens import utf8_size
from astromesh.types import Attachment, CompletionRequest, JsonObject, Message, ToolCall, ToolSpec

# -- reading answers -----------------------------------------------------------------------------------------

_FINISH = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_THOUGHTS = ("thinking", "redacted_thinking")
#: deltas of a block other than text, and the field of the delta and of the block that they extend
_GROWING = {
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


def _calls(blocks: Iterable[tuple[JsonObject, str]], owner: str) -> tuple[ToolCall, ...]:
    """Returns the tool calls among blocks with their streamed input; each has the thoughts before it."""
    return with_thoughts(map(_thought_or_call, blocks), owner)


def _thought_or_call(found: tuple[JsonObject, str]) -> JsonObject | ToolCall | None:
    block, streamed = found
    if block["type"] in _THOUGHTS:
        return block
    if block["type"] != "tool_use":
        return None
    return ToolCall(block["id"], block["name"], streamed or input_of(block))


class AnthropicReader(StreamReader):
    """Reads one stream of message events.

    Args:
        owner: the model to which its thoughts are sent back.
    """

    def __init__(self, owner: str) -> None:
        super().__init__(SseParser())
        self._owner = owner
        #: tool calls and thoughts, with their streamed texts
        self._blocks: dict[int, tuple[JsonObject, dict[str, TextBuffer]]] = {}
        self._finish = self._model = ""
        self._usage: JsonObject = {}

    def reply(self) -> Reply:
        if not self.done:
            raise truncated_answer()
        blocks = [_finished_block(*self._blocks[index]) for index in sorted(self._blocks)]
        calls = _calls(blocks, self._owner)
        reply = Reply(
            self._text.getvalue(),
            calls,
            _FINISH.get(self._finish, "stop"),
            token_counts(self._usage),
            self._model,
        )
        return require_content(reply, self._finish)

    def partial(self) -> Reply:
        calls = tuple(
            ToolCall("", block["name"], streamed)
            for block, streamed in (_finished_block(*grown) for grown in self._blocks.values())
            if block["type"] == "tool_use"
        )
        return Reply(self._text.getvalue(), calls, "", token_counts(self._usage))

    def read_event(self, data: bytes) -> Any:
        event: JsonObject = parse_json(data)
        kind = event["type"]
        if kind == "content_block_delta":
            return self._delta(event["index"], event["delta"])
        if kind == "content_block_start":
            return self._start(event["index"], event["content_block"])
        if kind == "message_start":
            self._model = event["message"].get("model") or ""
            self._add_usage(event["message"].get("usage"))
        elif kind == "message_delta":
            self._finish = event["delta"].get("stop_reason") or self._finish
            self._add_usage(event.get("usage"))
        elif kind == "message_stop":
            self.done = True
        elif kind == "error":
            raise provider_errors.from_body(event["error"])
        return ""

    def _start(self, index: int, block: JsonObject) -> Any:
        if block["type"] == "tool_use" or block["type"] in _THOUGHTS:
            self.size += CALL_SIZE
            self._blocks[index] = dict(block), {}
        return block["text"] if block["type"] == "text" else ""

    def _delta(self, index: int, delta: JsonObject) -> Any:
        if delta["type"] == "text_delta":
            return delta["text"]
        if key := _GROWING.get(delta["type"]):
            piece = delta[key]
            self.size += utf8_size(piece)
            self._blocks[index][1].setdefault(key, TextBuffer()).write(piece)
        return ""

    def _add_usage(self, usage: JsonObject | None) -> None:
        """Adds counts. They are totals so far; a later event may omit some of them."""
        self._usage |= {name: value for name, value in (usage or {}).items() if value is not None}


def _finished_block(block: JsonObject, streamed: Mapping[str, TextBuffer]) -> tuple[JsonObject, str]:
    """Returns a block with its streamed texts, and the streamed input of a tool call."""
    grown = {key: text.getvalue() for key, text in streamed.items()}
    arguments = grown.pop("partial_json", "")
    return {**block, **{key: block.get(key, "") + text for key, text in grown.items()}}, arguments


def token_counts(usage: JsonObject) -> TokenCounts | None:
    """Returns the reported tokens. The API counts cached tokens separately; here they are part of `input`."""
    if not usage:
        return None
    read, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    inputs = sum_counts(usage.get("input_tokens"), read, written)
    return TokenCounts(inputs, usage.get("output_tokens"), read, written)


# -- writing requests ----------------------------------------------------------------------------------------

ENDPOINT = "https://api.anthropic.com"
VERSION = "2023-06-01"
#: the API requires a limit in every call
MAX_TOKENS = 4096
#: the sampling parameters that the API has
_PARAMETERS = frozenset({"temperature", "top_p", "max_tokens", "stop"})
_CACHED = {"cache_control": {"type": "ephemeral"}}
_CHOICES: dict[str, JsonObject] = {"none": {"type": "none"}, "required": {"type": "any"}}


class AnthropicOptions(ModelOptions):
    """Options of `anthropic`."""

    usual_variable, usual_endpoints = "ANTHROPIC_API_KEY", (ENDPOINT, ENDPOINT + "/v1")

    prompt_cache: bool = Field(
        True, description="Mark tools, system prompt and conversation for the service's cache."
    )
    structured_output: Literal["json_schema", "prompt"] = Field(
        "json_schema", description="How an output schema is requested; older models support only the prompt."
    )


class Anthropic(Wire[AnthropicOptions]):
    """The plugin `anthropic`: requests and answers of one model."""

    Options = AnthropicOptions
    kind, usual_endpoint = "anthropic", ENDPOINT
    path = stream_path = "/v1/messages"
    ping_path = "/v1/models"

    def __init__(self, options: AnthropicOptions) -> None:
        super().__init__(options)
        self.capabilities = replace(self.capabilities, parameters=_PARAMETERS)
        self.endpoint = self.endpoint.rstrip("/").removesuffix("/v1")
        self._owner = f"anthropic/{options.model_name}"
        self._native = options.structured_output == "json_schema"
        self._cache_mark = _CACHED if options.prompt_cache else {}
        self._parameters = renamed(options.parameters, {}, "stop_sequences")
        self._tools = FragmentCache(self._encode_tools)

    def key_headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {"model": self.model, "max_tokens": MAX_TOKENS}
        if request.tools:
            body["tools"] = self._tools.of(request.tools)
            if request.tool_choice != "auto":
                choice = request.tool_choice
                body["tool_choice"] = _CHOICES.get(choice) or {"type": "tool", "name": choice}
        body.update(self._parameters)
        if request.parameters:
            body.update(renamed(request.parameters, {}, "stop_sequences"))
        system = [m.content for m in request.messages if m.role == "system" and m.content]
        if request.output_schema is not None:
            self._ask_for_json(body, system, request)
        if system:
            body["system"] = [{"type": "text", "text": "\n\n".join(system), **self._cache_mark}]
        messages = [m for m in request.messages if m.role != "system"]
        if (body.get("thinking") or {}).get("type") == "enabled" and has_foreign_calls(messages, self._owner):
            del body["thinking"]
        body["messages"] = turns = alternating_turns(messages, "assistant", "content", self._blocks)
        if turns[-1]["content"][-1]["type"] not in _THOUGHTS:
            # the next call of the conversation reads everything up to here from the cache
            turns[-1]["content"][-1] |= self._cache_mark
        if stream:
            body["stream"] = True
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        blocks, reason = payload["content"], payload.get("stop_reason") or ""
        reply = Reply(
            "".join(block["text"] for block in blocks if block["type"] == "text"),
            _calls(((block, "") for block in blocks), self._owner),
            _FINISH.get(reason, "stop"),
            token_counts(payload.get("usage") or {}),
            payload.get("model") or "",
        )
        return require_content(reply, reason)

    def token_counts(self, payload: Any) -> TokenCounts | None:
        return token_counts(payload["usage"])

    def reader(self) -> AnthropicReader:
        return AnthropicReader(self._owner)

    def _encode_tools(self, tools: tuple[ToolSpec, ...]) -> list[JsonObject]:
        offered: list[JsonObject] = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.parameters)} for t in tools
        ]
        # one mark at the end covers all tools
        offered[-1] |= self._cache_mark
        return offered

    def _ask_for_json(self, body: JsonObject, system: list[str], request: CompletionRequest) -> None:
        strict = close_objects(request.output_schema or {}) if self._native else None
        if strict is None:
            system.append(json_instruction(request))
        else:
            body["output_config"] = {"format": {"type": "json_schema", "schema": strict}}

    def _blocks(self, message: Message) -> list[JsonObject]:
        """The content of a message; the model receives its own thoughts before the calls they led to."""
        if message.role == "tool":
            return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
        # the API rejects blank texts
        text = [{"type": "text", "text": message.content}] if message.content.strip() else []
        return [
            *map(_attached, message.attachments),
            *thoughtful_parts(message, self._owner, text, _tool_use_block),
        ]


def _tool_use_block(call: ToolCall) -> JsonObject:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}


def _attached(one: Attachment) -> JsonObject:
    if one.kind == "audio":
        raise ProviderRejected("Anthropic's models take no audio.")
    kind = "document" if one.kind == "file" else "image"
    if one.url:
        return {"type": kind, "source": {"type": "url", "url": one.url}}
    return {"type": kind, "source": {"type": "base64", "media_type": one.media_type, "data": one.data}}
