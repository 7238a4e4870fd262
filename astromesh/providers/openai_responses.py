"""OpenAI's Responses API, which some models need, without state at the service.

Format: https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from astromesh.errors import ProviderRejected
from astromesh.net import provider_errors
from astromesh.net.stream_parsers import SseParser
from astromesh.providers.entra import EntraWire
from astromesh.providers.openai import (
    ENDPOINT,
    PLAIN_CHOICES,
    OpenAIKeys,
    image_url,
    strict_schema,
    token_counts,
)
from astromesh.providers.options import capabilities_of
from astromesh.providers.wire import (
    CALL_SIZE,
    FragmentCache,
    Reply,
    StreamReader,
    TokenCounts,
    arguments_of,
    pack_model_state,
    parse_json,
    require_content,
    truncated_answer,
    unpack_model_state,
    with_schema_instruction,
)
from astromesh.text import TextBuffer
from astromesh.tokens import utf8_size
from astromesh.types import Attachment, CompletionRequest, JsonObject, Message, ToolCall, ToolSpec

# -- reading answers -----------------------------------------------------------------------------------------

_ENDED = ("completed", "incomplete")
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}
#: what goes back of a reasoning item; the API rejects its `status`
_REASONING = ("type", "id", "summary", "content", "encrypted_content")


class ResponsesReader(StreamReader):
    """Reads one stream of response events.

    Args:
        owner: the model to which its reasoning is sent back; empty if it is not.
    """

    def __init__(self, owner: str) -> None:
        super().__init__(SseParser())
        self._owner = owner
        self._items: dict[int, JsonObject] = {}
        #: names and arguments of calls that have begun
        self._calls: dict[int, tuple[Any, TextBuffer]] = {}
        self._response: JsonObject = {}

    def reply(self) -> Reply:
        if not self.done:
            raise truncated_answer()
        output = self._response.get("output") or [self._items[index] for index in sorted(self._items)]
        reply = _reply({**self._response, "output": output}, self._owner)
        return reply._replace(content=self._text.getvalue())

    def partial(self) -> Reply:
        calls = tuple(ToolCall("", name, text.getvalue()) for name, text in self._calls.values())
        return Reply(self._text.getvalue(), calls, "", _token_counts(self._response.get("usage")))

    def read_event(self, data: bytes) -> Any:
        if data == b"[DONE]":
            return ""
        event: JsonObject = parse_json(data)
        kind = event["type"]
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return event["delta"]
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._read_item(event["output_index"], event["item"], ended=kind.endswith("done"))
        elif kind == "response.function_call_arguments.delta":
            self.size += utf8_size(event["delta"])
            self._calls[event["output_index"]][1].write(event["delta"])
        elif kind in ("response.completed", "response.incomplete"):
            self._response, self.done = event["response"], True
        elif kind == "response.failed":
            raise provider_errors.from_body(event["response"].get("error") or {})
        elif kind == "error":
            raise provider_errors.from_body(event.get("error") or event)
        return ""

    def _read_item(self, index: int, item: JsonObject, *, ended: bool) -> None:
        if ended:
            self.size += utf8_size(item.get("encrypted_content") or "")
            self._items[index] = item
        elif item["type"] == "function_call":
            self.size += CALL_SIZE
            self._calls[index] = item["name"], TextBuffer()


def _reply(response: JsonObject, owner: str) -> Reply:
    """Returns a whole answer. Raises: ProviderUnavailable: it has not ended, or it is empty."""
    status, output = response.get("status") or "", response["output"]
    if status and status not in _ENDED:
        raise truncated_answer()
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    calls = _calls(output, owner)
    reply = Reply(
        "".join(part["text"] if part["type"] == "output_text" else part.get("refusal", "") for part in parts),
        calls,
        _finish(response, calls, refused=any(part["type"] == "refusal" for part in parts)),
        _token_counts(response.get("usage")),
        response.get("model") or "",
    )
    return require_content(reply, status)


def _finish(response: JsonObject, calls: tuple[ToolCall, ...], *, refused: bool) -> str:
    if calls:
        return "tool_calls"
    reason = (response.get("incomplete_details") or {}).get("reason") or ""
    return "content_filter" if refused else _INCOMPLETE.get(reason, "stop")


def _calls(output: Iterable[JsonObject], owner: str) -> tuple[ToolCall, ...]:
    """Returns the tool calls; each has the reasoning before it, and the place of the text between."""
    calls: list[ToolCall] = []
    before: list[JsonObject] = []
    for item in output:
        if item["type"] == "function_call":
            state = pack_model_state(owner, before) if owner and _is_worth_keeping(before) else ""
            calls.append(ToolCall(item["call_id"], item["name"], arguments_of(item.get("arguments")), state))
            before = []
        elif item["type"] == "message":
            before.append({key: item[key] for key in ("type", "phase") if item.get(key)})
        elif item["type"] == "reasoning" and (item.get("encrypted_content") or item.get("content")):
            # without its content an item stands for what the service has stored, and it stores nothing
            before.append({key: item[key] for key in _REASONING if item.get(key) is not None})
    return tuple(calls)


def _is_worth_keeping(items: Iterable[JsonObject]) -> bool:
    return any(item["type"] == "reasoning" or "phase" in item for item in items)


def _token_counts(usage: Any) -> TokenCounts | None:
    return token_counts(usage, "input", "output")


# -- writing requests ----------------------------------------------------------------------------------------

#: the sampling parameters that the API has
_PARAMETERS = frozenset({"temperature", "top_p", "max_tokens"})
#: parameters of chat completions that are fields of an object here -> the object and the field
_NESTED = {"reasoning_effort": ("reasoning", "effort"), "verbosity": ("text", "verbosity")}
_ENCRYPTED = ["reasoning.encrypted_content"]
#: models that reason; the API rejects the request for encrypted reasoning for others
_REASONS = re.compile(r"(^|/)(o\d|gpt-([5-9]|\d\d)|codex|gpt-oss)(?!.*-chat)")


class ResponsesOptions(OpenAIKeys):
    """Options of `openai_responses`."""

    reserved: ClassVar[tuple[str, ...]] = (
        "input", "instructions", "messages", "model", "store", "stream", "tools",
    )  # fmt: skip

    encrypted_reasoning: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether to ask for the encrypted reasoning of an answer, which goes back with the "
        "results of its tool calls. `auto`: of models whose name says that they reason.",
    )


class OpenAIResponses(EntraWire[ResponsesOptions]):
    """The plugin `openai_responses`: requests and answers of one model."""

    Options = ResponsesOptions
    kind, usual_endpoint = "openai_responses", ENDPOINT
    path = stream_path = "/responses"
    ping_path = "/models"

    def __init__(self, options: ResponsesOptions) -> None:
        super().__init__(options)
        known = capabilities_of(options, json=options.structured_output != "none")
        self.capabilities = replace(known, parameters=_PARAMETERS)
        self._structured = options.structured_output
        self._parameters = _renamed(options.parameters)
        self._tools = FragmentCache(lambda tools: [_declared(tool) for tool in tools])
        mode = options.encrypted_reasoning
        reasons = mode == "always" or (mode == "auto" and bool(_REASONS.search(self.model)))
        self._include: JsonObject = {"include": _ENCRYPTED} if reasons else {}
        self._owner = "" if mode == "never" else f"openai_responses/{self.model}"

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {"model": self.model, "store": False}
        if request.tools:
            body["tools"] = self._tools.of(request.tools)
            if request.tool_choice != "auto":
                choice = request.tool_choice
                plain = choice in PLAIN_CHOICES
                body["tool_choice"] = choice if plain else {"type": "function", "name": choice}
        messages = request.messages
        if request.output_schema is not None and self._structured != "json_schema":
            messages = with_schema_instruction(request)
        if system := "\n\n".join(m.content for m in messages if m.role == "system" and m.content):
            body["instructions"] = system
        body["input"] = [item for m in messages if m.role != "system" for item in self._items(m)]
        body.update(self._include)
        body.update(self._parameters)
        if request.parameters:
            body.update(_renamed(request.parameters))
        if request.output_schema is not None:
            self._ask_for_json(body, request.output_schema)
        if stream:
            body["stream"] = True
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        return _reply(payload, self._owner)

    def token_counts(self, payload: Any) -> TokenCounts | None:
        return _token_counts(payload["usage"])

    def reader(self) -> ResponsesReader:
        return ResponsesReader(self._owner)

    def _ask_for_json(self, body: JsonObject, schema: Mapping[str, Any]) -> None:
        form: JsonObject = {"type": "json_object"}
        if self._structured == "none":
            return
        if self._structured == "json_schema":
            strict = strict_schema(schema)
            form = {"type": "json_schema", "name": "answer", "schema": strict or dict(schema)}
            form["strict"] = strict is not None
        body["text"] = {**body.get("text", {}), "format": form}

    def _items(self, message: Message) -> list[JsonObject]:
        """A message as input; the model receives its own reasoning before the calls that it led to."""
        if message.role == "tool":
            call_id = message.tool_call_id
            return [{"type": "function_call_output", "call_id": call_id, "output": message.content}]
        if not message.tool_calls:
            return [_plain_item(message)] if message.content or message.attachments else []
        items, text = [], message.content
        for call in message.tool_calls:
            for before in unpack_model_state(call, self._owner) or ():
                if before["type"] == "reasoning":
                    items.append(before)
                elif text:
                    items.append({**before, "role": "assistant", "content": text})
                    text = ""
            items.append(
                {
                    "type": "function_call",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                }
            )
        return [{"role": "assistant", "content": text}, *items] if text else items


def _plain_item(message: Message) -> JsonObject:
    if not message.attachments:
        return {"role": message.role, "content": message.content}
    parts: list[JsonObject] = [{"type": "input_text", "text": message.content}] if message.content else []
    return {"role": message.role, "content": [*parts, *map(_attached, message.attachments)]}


def _attached(one: Attachment) -> JsonObject:
    if one.kind == "audio":
        raise ProviderRejected("OpenAI's Responses API takes no audio.")
    if one.kind == "image":
        return {"type": "input_image", "image_url": image_url(one), "detail": "auto"}
    if one.url:
        return {"type": "input_file", "file_url": one.url}
    return {"type": "input_file", "filename": one.name or "file.pdf", "file_data": image_url(one)}


def _declared(tool: ToolSpec) -> JsonObject:
    # without `strict` the API would require arguments that may be missing
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", **described, "strict": False}


def _renamed(parameters: Mapping[str, Any]) -> JsonObject:
    """Returns parameters with the API's own names."""
    renamed = dict(parameters)
    for limit in ("max_tokens", "max_completion_tokens"):
        if limit in renamed:
            renamed.setdefault("max_output_tokens", renamed.pop(limit))
    for name, (outer, inner) in _NESTED.items():
        if name in renamed:
            renamed[outer] = {inner: renamed.pop(name), **renamed.get(outer, {})}
    return renamed
