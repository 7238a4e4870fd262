"""OpenAI chat completions, and every service that speaks them: vLLM, llama.cpp, TGI, LM Studio, gateways.

Format: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

import orjson
from pydantic import Field

from astromesh.abc.deps import Deps
from astromesh.providers.catalog import capabilities_of, price_of
from astromesh.providers.encoding import FragmentCache
from astromesh.providers.openai_reply import OpenAIReader, counted, decode_completion
from astromesh.providers.options import ModelOptions, read_key
from astromesh.providers.service import Counted, Reply, ServiceProvider, service_of, told_in_words
from astromesh.types import CompletionRequest, Image, JsonObject, Message

ENDPOINT = "https://api.openai.com/v1"
Structured = Literal["json_schema", "json_object", "none"]
_PLAIN_CHOICES = ("auto", "none", "required")


class OpenAIOptions(ModelOptions):
    """Options of `openai`. The defaults fit OpenAI itself."""

    usual_variable, usual_endpoints = "OPENAI_API_KEY", (ENDPOINT,)

    structured_output: Structured = Field(
        "json_schema",
        description="How an output schema is asked for: by JSON Schema, by JSON mode, or in words alone.",
    )
    api_version: str = Field(
        "",
        pattern=r"^[\w.-]*$",
        description="Version of Azure's API, e.g. 2024-10-21: the model is then the name of a deployment, "
        "the endpoint that of the resource. Azure's newer endpoints (…/openai/v1) need none.",
    )
    stream_usage: bool = Field(
        True, description="Ask for token counts at a stream's end; some older servers refuse the question."
    )


class OpenAI:
    """The plugin `openai`."""

    Options = OpenAIOptions

    @classmethod
    async def open(cls, options: OpenAIOptions, deps: Deps) -> ServiceProvider:
        """Opens nothing: calls go over the shared session.

        Raises:
            MissingKey: the key that the block names is not set.
            ConfigError: no model, or no usable endpoint.
        """
        official = options.endpoint in ("", ENDPOINT)
        key = read_key(options, deps.config_dir)
        service = service_of(
            options,
            "openai",
            ENDPOINT,
            _key_header(options, key),
            capabilities=capabilities_of(options, json=options.structured_output != "none"),
            price=price_of(options),
        )
        return ServiceProvider(service, OpenAIWire(options, official=official), deps.http)


class OpenAIWire:
    """Requests and answers of one model.

    Args:
        options: of the block.
        official: whether the endpoint is OpenAI's own, which has renamed `max_tokens`.
    """

    def __init__(self, options: OpenAIOptions, *, official: bool = False) -> None:
        self.path, self.ping_path = _paths(options)
        self.stream_path = self.path
        self._model = options.chosen
        self._structured = options.structured_output
        self._official = official
        #: many other servers hold a model to the schema so that it can call no tools, or refuse both at once
        self._beside_tools = official or bool(options.api_version)
        self._parameters = self._renamed(options.parameters)
        self._stream: JsonObject = {"stream": True}
        if options.stream_usage:
            self._stream["stream_options"] = {"include_usage": True}
        self._tools = FragmentCache(lambda tools: [tool.to_function() for tool in tools])

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {"model": self._model}
        if request.tools:
            body["tools"] = self._tools.of(request.tools)
            if request.tool_choice != "auto":
                body["tool_choice"] = _tool_choice(request.tool_choice)
        said = told_in_words(request) if self._needs_words(request) else request.messages
        body["messages"] = [encode_message(m) for m in said]
        body.update(self._parameters)
        if request.parameters:
            body.update(self._renamed(request.parameters))
        if request.output_schema is not None:
            self._ask_for_json(body, request)
        if stream:
            body.update(self._stream)
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        return decode_completion(payload)

    def counted(self, payload: Any) -> Counted | None:
        return counted(payload["usage"])

    def reader(self) -> OpenAIReader:
        return OpenAIReader()

    def _renamed(self, parameters: Mapping[str, Any]) -> JsonObject:
        named = dict(parameters)
        if self._official and "max_tokens" in named:
            named.setdefault("max_completion_tokens", named.pop("max_tokens"))
        return named

    def _needs_words(self, request: CompletionRequest) -> bool:
        if request.output_schema is None:
            return False
        return self._structured != "json_schema" or bool(request.tools and not self._beside_tools)

    def _ask_for_json(self, body: JsonObject, request: CompletionRequest) -> None:
        if request.tools and request.tool_choice != "none" and not self._beside_tools:
            return
        if self._structured == "json_schema":
            schema = {"name": "answer", "schema": dict(request.output_schema or {})}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self._structured == "json_object":
            body["response_format"] = {"type": "json_object"}


def _paths(options: OpenAIOptions) -> tuple[str, str]:
    """Where chats and the list of models are, below the endpoint.

    Azure: https://learn.microsoft.com/azure/ai-services/openai/reference
    """
    if not options.api_version:
        return "/chat/completions", "/models"
    base = "" if options.endpoint.rstrip("/").endswith("/openai") else "/openai"
    version = f"api-version={options.api_version}"
    deployment = f"{base}/deployments/{quote(options.chosen, safe='')}"
    return f"{deployment}/chat/completions?{version}", f"{base}/models?{version}"


def _key_header(options: OpenAIOptions, key: str) -> dict[str, str]:
    if not key:
        return {}
    return {"api-key": key} if options.api_version else {"authorization": f"Bearer {key}"}


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
    if message.images:
        parts: list[JsonObject] = [{"type": "text", "text": message.content}] if message.content else []
        parts += [{"type": "image_url", "image_url": {"url": image_url(i)}} for i in message.images]
        return {"role": message.role, "content": parts}
    return {"role": message.role, "content": message.content}


def image_url(image: Image) -> str:
    return image.url or f"data:{image.media_type};base64,{image.data}"


def _tool_choice(choice: str) -> object:
    return choice if choice in _PLAIN_CHOICES else {"type": "function", "function": {"name": choice}}
