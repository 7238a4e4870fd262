"""Google's Gemini API. Format: https://ai.google.dev/api/generate-content"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import orjson

from astromesh.abc.deps import Deps
from astromesh.errors import ProviderRejected
from astromesh.providers.catalog import capabilities_of, price_of
from astromesh.providers.encoding import FragmentCache
from astromesh.providers.gemini_reply import GeminiReader, counted
from astromesh.providers.kept import kept
from astromesh.providers.options import ModelOptions, read_key
from astromesh.providers.service import Counted, Reply, ServiceProvider, service_of, told_in_words
from astromesh.types import CompletionRequest, Image, JsonObject, Message, ToolCall, ToolSpec

ENDPOINT = "https://generativelanguage.googleapis.com/v1beta"
#: names that every provider takes, in the API's own words; others are passed on as they are
_NAMES = {
    "max_tokens": "maxOutputTokens",
    "top_p": "topP",
    "top_k": "topK",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
#: Gemini 3 refuses its calls without their signatures; this stands for one that is not known any more
#: (https://ai.google.dev/gemini-api/docs/thought-signatures)
_UNSIGNED = "skip_thought_signature_validator"
_TEXT_OF_NOTHING = "(no text)"


class GeminiOptions(ModelOptions):
    """Options of `gemini`."""

    usual_variable, usual_endpoints = "GEMINI_API_KEY", (ENDPOINT,)


class Gemini:
    """The plugin `gemini`."""

    Options = GeminiOptions

    @classmethod
    async def open(cls, options: GeminiOptions, deps: Deps) -> ServiceProvider:
        """Opens nothing: calls go over the shared session.

        Raises:
            MissingKey: the key that the block names is not set.
            ConfigError: no model, or no usable endpoint.
        """
        key = read_key(options, deps.config_dir)
        service = service_of(
            options,
            "gemini",
            ENDPOINT,
            {"x-goog-api-key": key} if key else {},
            capabilities=capabilities_of(options),
            price=price_of(options),
        )
        return ServiceProvider(service, GeminiWire(options), deps.http)


class GeminiWire:
    """Requests and answers of one model.

    Args:
        options: of the block.
    """

    ping_path = "/models"

    def __init__(self, options: GeminiOptions) -> None:
        model = options.chosen.removeprefix("models/")
        self.path = f"/models/{quote(model, safe='')}:generateContent"
        self.stream_path = f"/models/{quote(model, safe='')}:streamGenerateContent?alt=sse"
        self._parameters = _renamed(options.parameters)
        self._owner = f"gemini/{model}"
        self._unsigned = _UNSIGNED if model.startswith("gemini-3") else ""
        self._tools = FragmentCache(lambda tools: [{"functionDeclarations": [_declared(t) for t in tools]}])

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {}
        schema, messages = request.output_schema, request.messages
        if schema is not None and request.tools:  # many of its models refuse both at once
            schema, messages = None, told_in_words(request)
        if system := "\n\n".join(m.content for m in messages if m.role == "system" and m.content):
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if request.tools:
            body["tools"] = self._tools.of(request.tools)
            if request.tool_choice != "auto":
                body["toolConfig"] = {"functionCallingConfig": _calling(request.tool_choice)}
        body["contents"] = self._contents(m for m in messages if m.role != "system")
        config = {**self._parameters, **_renamed(request.parameters)}
        if schema is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = dict(schema)
        if config:
            body["generationConfig"] = config
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        reader = self.reader()
        reader.take(payload)
        return reader.whole()

    def counted(self, payload: Any) -> Counted | None:
        return counted(payload["usageMetadata"])

    def reader(self) -> GeminiReader:
        return GeminiReader(self._owner)

    def _contents(self, messages: Iterable[Message]) -> list[JsonObject]:
        """Turns of user and model, the user's first: results of parallel calls go into one turn."""
        turns: list[JsonObject] = []
        for message in messages:
            role = "model" if message.role == "assistant" else "user"
            parts = self._parts(message)
            if turns and turns[-1]["role"] == role:
                turns[-1]["parts"] += parts
            elif parts:
                turns.append({"role": role, "parts": parts})
        if not turns or turns[0]["role"] != "user":
            turns.insert(0, {"role": "user", "parts": [{"text": _TEXT_OF_NOTHING}]})
        return turns

    def _parts(self, message: Message) -> list[JsonObject]:
        if message.role == "tool":
            result = {"result": message.content}
            answer = {"id": message.tool_call_id, "name": message.name, "response": result}
            return [{"functionResponse": answer}]
        parts: list[JsonObject] = [_image(image) for image in message.images]
        if message.content:
            parts.append({"text": message.content})
        # of calls made at once the first alone is signed
        calls = [self._called(call, first=not number) for number, call in enumerate(message.tool_calls)]
        return parts + calls

    def _called(self, call: ToolCall, *, first: bool) -> JsonObject:
        part: JsonObject = {
            "functionCall": {"id": call.id, "name": call.name, "args": _arguments(call.arguments)}
        }
        if signature := kept(call, self._owner) or (self._unsigned if first else ""):
            part["thoughtSignature"] = signature
        return part


def _declared(tool: ToolSpec) -> JsonObject:
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": dict(tool.parameters),
    }


def _calling(choice: str) -> JsonObject:
    if mode := _MODES.get(choice):
        return {"mode": mode}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def _arguments(text: str) -> JsonObject:
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = None
    # what the model got wrong; the result that follows says so
    return arguments if isinstance(arguments, dict) else {"invalid": text}


def _image(image: Image) -> JsonObject:
    if not image.data:
        raise ProviderRejected("Gemini takes pictures as data, not as URLs.")
    return {"inlineData": {"mimeType": image.media_type, "data": image.data}}


def _renamed(parameters: Mapping[str, Any]) -> JsonObject:
    named = {_NAMES.get(name, name): value for name, value in parameters.items()}
    if "stop" in named:
        stop = named.pop("stop")
        named["stopSequences"] = [stop] if isinstance(stop, str) else list(stop)
    return named
