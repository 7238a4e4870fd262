"""Google's Gemini API. Format: https://ai.google.dev/api/generate-content"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import orjson

from astromesh.errors import ProviderRejected, ProviderUnavailable
from astromesh.net import provider_errors
from astromesh.net.stream_parsers import SseParser
from astromesh.providers.options import ModelOptions
from astromesh.providers.service import OptionsT, Wire
from astromesh.providers.wire import (
    CALL_SIZE,
    FragmentCache,
    Reply,
    StreamReader,
    TokenCounts,
    alternating_turns,
    arguments_object,
    latest_counts,
    pack_model_state,
    parse_json,
    renamed,
    sum_counts,
    truncated_answer,
    unpack_model_state,
    with_schema_instruction,
)
from astromesh.tokens import utf8_size
from astromesh.types import Attachment, CompletionRequest, JsonObject, Message, ToolCall, ToolSpec

# -- reading answers -----------------------------------------------------------------------------------------

_FINISH = {
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"), "content_filter"
    ),
}
#: the API could not parse the model's answer and discarded it; a retry may succeed
_RETRYABLE_REASONS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})


class GeminiReader(StreamReader):
    """Reads one `GenerateContentResponse`, whole or as server-sent events; only the end of the body ends it.

    Args:
        owner: the model to which its signatures are sent back.
    """

    def __init__(self, owner: str) -> None:
        super().__init__(SseParser())
        self._owner = owner
        self._calls: list[ToolCall] = []
        self._finish = self._model = ""
        self._counts: TokenCounts | None = None

    def partial(self) -> Reply:
        return Reply(self._text.getvalue(), tuple(self._calls), "", self._counts, self._model)

    def reply(self) -> Reply:
        """Raises: ProviderUnavailable: the end is missing, or the API could not parse the model's answer."""
        if not self._finish:
            raise truncated_answer()
        if self._finish in _RETRYABLE_REASONS:
            raise ProviderUnavailable(f"did not finish its answer: {self._finish}")
        reason = "tool_calls" if self._calls else _FINISH.get(self._finish, "stop")
        return self.partial()._replace(finish_reason=reason)

    def read_event(self, data: bytes) -> str:
        return self.read_response(parse_json(data))

    def read_response(self, payload: Any) -> str:
        """Reads one response and returns its text."""
        if error := payload.get("error"):
            raise provider_errors.from_body(error)
        self._model = payload.get("modelVersion") or self._model
        if usage := payload.get("usageMetadata"):
            self._counts = latest_counts(token_counts(usage), self._counts)
        if (payload.get("promptFeedback") or {}).get("blockReason"):
            self._finish = "SAFETY"
        return "".join(self._choose(candidate) for candidate in (payload.get("candidates") or ())[:1])

    def _choose(self, candidate: JsonObject) -> str:
        self._finish = candidate.get("finishReason") or self._finish
        received = ""
        for part in (candidate.get("content") or {}).get("parts") or ():
            if call := part.get("functionCall"):
                self._call(call, part.get("thoughtSignature"))
            elif not part.get("thought"):  # thoughts are not part of the answer
                received += part.get("text") or ""
        return received

    def _call(self, call: JsonObject, signature: Any) -> None:
        name, call_id = call["name"], call.get("id")
        if not isinstance(name, str) or not name:
            raise TypeError("a tool call without a name")
        if not isinstance(call_id, str) or not call_id:
            call_id = f"call_{uuid4().hex}"
        state = pack_model_state(self._owner, signature) if isinstance(signature, str) else ""
        arguments = orjson.dumps(call.get("args") or {}).decode()
        self.size += CALL_SIZE + utf8_size(arguments) + utf8_size(state)
        self._calls.append(ToolCall(call_id, name, arguments, state))


def token_counts(usage: JsonObject) -> TokenCounts | None:
    """Returns the reported tokens. Thoughts are output tokens, as they are priced."""
    if "promptTokenCount" not in usage:
        return None
    outputs = sum_counts(usage.get("candidatesTokenCount", 0), usage.get("thoughtsTokenCount"))  # it omits 0
    inputs = sum_counts(usage["promptTokenCount"], usage.get("toolUsePromptTokenCount"))
    cached, reasoning = usage.get("cachedContentTokenCount") or 0, usage.get("thoughtsTokenCount") or 0
    return TokenCounts(inputs, outputs, cached, reasoning=reasoning)


ENDPOINT = "https://generativelanguage.googleapis.com/v1beta"
#: the API's names of the common parameters; other parameters are passed on unchanged
_NAMES = {
    "max_tokens": "maxOutputTokens",
    "top_p": "topP",
    "top_k": "topK",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
#: parameters that stand beside `generationConfig`, not in it
_TOP_LEVEL = ("safetySettings", "toolConfig", "cachedContent")
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
#: Gemini 3 rejects its own calls without signatures; this replaces an unknown signature
#: (https://ai.google.dev/gemini-api/docs/thought-signatures)
_UNSIGNED = "skip_thought_signature_validator"


class GeminiOptions(ModelOptions):
    """Options of `gemini`."""

    usual_variable, usual_endpoints = "GEMINI_API_KEY", (ENDPOINT,)


class GenerateContent(Wire[OptionsT]):
    """Requests and answers of one model, wherever Google offers it."""

    def __init__(self, options: OptionsT) -> None:
        super().__init__(options)
        model = options.model_name.removeprefix("models/")
        self._place(f"/models/{quote(model, safe='')}")
        self._parameters = renamed(options.parameters, _NAMES, "stopSequences")
        self._owner = f"{self.kind}/{model}"
        self._unsigned = _UNSIGNED if model.startswith("gemini-3") else ""
        self._tools = FragmentCache(lambda tools: [{"functionDeclarations": [_declared(t) for t in tools]}])

    def _place(self, model: str) -> None:
        self.path, self.stream_path = f"{model}:generateContent", f"{model}:streamGenerateContent?alt=sse"

    def key_headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {}
        schema, messages = request.output_schema, request.messages
        if schema is not None and request.tools:  # many models reject both together
            schema, messages = None, with_schema_instruction(request)
        if system := "\n\n".join(m.content for m in messages if m.role == "system" and m.content):
            body["systemInstruction"] = {"parts": [{"text": system}]}
        config = {**self._parameters, **renamed(request.parameters, _NAMES, "stopSequences")}
        body.update({name: config.pop(name) for name in _TOP_LEVEL if name in config})
        if request.tools:
            body["tools"] = self._tools.of(request.tools)
            if request.tool_choice != "auto":
                calling = {"functionCallingConfig": _calling(request.tool_choice)}
                body["toolConfig"] = {**body.get("toolConfig", {}), **calling}
        turns = [m for m in messages if m.role != "system"]
        body["contents"] = alternating_turns(turns, "model", "parts", self._parts)
        if schema is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = dict(schema)
        if config:
            body["generationConfig"] = config
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        reader = self.reader()
        reader.add(reader.read_response(payload))
        return reader.reply()

    def token_counts(self, payload: Any) -> TokenCounts | None:
        return token_counts(payload["usageMetadata"])

    def reader(self) -> GeminiReader:
        return GeminiReader(self._owner)

    def _parts(self, message: Message) -> list[JsonObject]:
        if message.role == "tool":
            result = {"result": message.content}
            answer = {"id": message.tool_call_id, "name": message.name, "response": result}
            return [{"functionResponse": answer}]
        parts: list[JsonObject] = [*map(_attached, message.attachments)]
        if message.content:
            parts.append({"text": message.content})
        # of parallel calls only the first is signed
        calls = [
            self._function_call_part(call, first=not number) for number, call in enumerate(message.tool_calls)
        ]
        return parts + calls

    def _function_call_part(self, call: ToolCall, *, first: bool) -> JsonObject:
        part: JsonObject = {
            "functionCall": {"id": call.id, "name": call.name, "args": arguments_object(call.arguments)}
        }
        if signature := unpack_model_state(call, self._owner) or (self._unsigned if first else ""):
            part["thoughtSignature"] = signature
        return part


class Gemini(GenerateContent[GeminiOptions]):
    """The plugin `gemini`: requests and answers of one model."""

    Options = GeminiOptions
    kind, usual_endpoint = "gemini", ENDPOINT
    ping_path = "/models"


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


def _attached(one: Attachment) -> JsonObject:
    if not one.data:
        raise ProviderRejected("Gemini accepts attachments as data, not as URLs.")
    return {"inlineData": {"mimeType": one.media_type, "data": one.data}}
