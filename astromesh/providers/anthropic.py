"""Anthropic's messages API. Format: https://docs.claude.com/en/api/messages"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import orjson
from pydantic import Field

from astromesh.abc.deps import Deps
from astromesh.providers.anthropic_reply import AnthropicReader, counted, decode_message
from astromesh.providers.catalog import capabilities_of, price_of
from astromesh.providers.closed_schema import closed
from astromesh.providers.encoding import FragmentCache
from astromesh.providers.kept import kept
from astromesh.providers.options import ModelOptions, read_key
from astromesh.providers.service import Counted, Reply, ServiceProvider, json_instruction, service_of
from astromesh.types import CompletionRequest, Image, JsonObject, Message, ToolCall, ToolSpec

ENDPOINT = "https://api.anthropic.com"
VERSION = "2023-06-01"
#: the API wants a limit in every call
MAX_TOKENS = 4096
_CACHED = {"cache_control": {"type": "ephemeral"}}
_CHOICES: dict[str, JsonObject] = {"none": {"type": "none"}, "required": {"type": "any"}}
_TEXT_OF_NOTHING = "(no text)"


class AnthropicOptions(ModelOptions):
    """Options of `anthropic`."""

    usual_variable, usual_endpoints = "ANTHROPIC_API_KEY", (ENDPOINT, ENDPOINT + "/v1")

    prompt_cache: bool = Field(True, description="Mark tools and system prompt for the service's cache.")
    structured_output: Literal["json_schema", "prompt"] = Field(
        "json_schema", description="How an output schema is asked for; older models only know the prompt."
    )


class Anthropic:
    """The plugin `anthropic`."""

    Options = AnthropicOptions

    @classmethod
    async def open(cls, options: AnthropicOptions, deps: Deps) -> ServiceProvider:
        """Opens nothing: calls go over the shared session.

        Raises:
            MissingKey: the key that the block names is not set.
            ConfigError: no model, or no usable endpoint.
        """
        endpoint = options.endpoint.rstrip("/").removesuffix("/v1")
        key = read_key(options, deps.config_dir)
        headers = {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}
        service = service_of(
            options.model_copy(update={"endpoint": endpoint}),
            "anthropic",
            ENDPOINT,
            headers,
            capabilities=capabilities_of(options),
            price=price_of(options),
        )
        return ServiceProvider(service, AnthropicWire(options), deps.http)


class AnthropicWire:
    """Requests and answers of one model.

    Args:
        options: of the block.
    """

    path = stream_path = "/v1/messages"
    ping_path = "/v1/models"

    def __init__(self, options: AnthropicOptions) -> None:
        self._model = options.chosen
        self._owner = f"anthropic/{options.chosen}"
        self._native = options.structured_output == "json_schema"
        self._mark = _CACHED if options.prompt_cache else {}
        self._parameters = _renamed(options.parameters)
        self._tools = FragmentCache(self._offered)

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {"model": self._model, "max_tokens": MAX_TOKENS}
        if request.tools:
            body["tools"] = self._tools.of(request.tools)
            if request.tool_choice != "auto":
                choice = request.tool_choice
                body["tool_choice"] = _CHOICES.get(choice) or {"type": "tool", "name": choice}
        body.update(self._parameters)
        if request.parameters:
            body.update(_renamed(request.parameters))
        system = [m.content for m in request.messages if m.role == "system" and m.content]
        if request.output_schema is not None:
            self._ask_for_json(body, system, request)
        if system:
            body["system"] = [{"type": "text", "text": "\n\n".join(system), **self._mark}]
        messages = [m for m in request.messages if m.role != "system"]
        if (body.get("thinking") or {}).get("type") == "enabled" and self._has_not_thought(messages):
            del body["thinking"]
        body["messages"] = encode_messages(messages, self._owner)
        if stream:
            body["stream"] = True
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        return decode_message(payload, self._owner)

    def counted(self, payload: Any) -> Counted | None:
        return counted(payload["usage"])

    def reader(self) -> AnthropicReader:
        return AnthropicReader(self._owner)

    def _has_not_thought(self, messages: Sequence[Message]) -> bool:
        """Whether the tool loop has calls of another model: amid one the API begins no thinking."""
        for message in reversed(messages):
            if message.role == "user":
                break
            if message.tool_calls and kept(message.tool_calls[0], self._owner) is None:
                return True
        return False

    def _offered(self, tools: tuple[ToolSpec, ...]) -> list[JsonObject]:
        offered: list[JsonObject] = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.parameters)} for t in tools
        ]
        # one mark at the end covers all of them
        offered[-1] |= self._mark
        return offered

    def _ask_for_json(self, body: JsonObject, system: list[str], request: CompletionRequest) -> None:
        strict = closed(request.output_schema or {}) if self._native else None
        if strict is None:
            system.append(json_instruction(request))
        else:
            body["output_config"] = {"format": {"type": "json_schema", "schema": strict}}


def encode_messages(messages: Iterable[Message], owner: str) -> list[JsonObject]:
    """Messages whose roles take turns, the user's first: results of parallel calls go into one message.

    Args:
        owner: the model that is asked: it gets its own thoughts back, before the calls that they led to.
    """
    turns: list[JsonObject] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, owner)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": _TEXT_OF_NOTHING}]})
    return turns


def _blocks(message: Message, owner: str) -> list[JsonObject]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
    thoughts: list[list[JsonObject]] = [kept(call, owner) or [] for call in message.tool_calls]
    blocks: list[JsonObject] = [_image(image) for image in message.images]
    if thoughts:
        blocks += thoughts[0]  # a message begins with them
        thoughts[0] = []
    if message.content.strip():  # the API refuses blank texts
        blocks.append({"type": "text", "text": message.content})
    for call, before in zip(message.tool_calls, thoughts, strict=True):
        blocks += (*before, _tool_use(call))
    return blocks


def _tool_use(call: ToolCall) -> JsonObject:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):  # what the model got wrong; the result that follows says so
        arguments = {"invalid": call.arguments}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _image(image: Image) -> JsonObject:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


def _renamed(parameters: Mapping[str, Any]) -> JsonObject:
    """The names that every provider takes, in the API's own words."""
    named = dict(parameters)
    if "stop" in named:
        stop = named.pop("stop")
        named["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    return named
