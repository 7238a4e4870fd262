"""Amazon Bedrock: Converse and ConverseStream, signed with the credentials that botocore finds.

Format: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self
from urllib.parse import quote

import orjson
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.eventstream import EventStreamBuffer, ParserError
from botocore.exceptions import BotoCoreError
from botocore.session import Session
from pydantic import Field
from yarl import URL

from astromesh.errors import ConfigError, MissingKey, ProviderRejected, ProviderUnavailable
from astromesh.net import provider_errors
from astromesh.net.http import read_key
from astromesh.net.stream_parsers import ServerEvent, SseParser
from astromesh.plugins import Deps
from astromesh.providers.authorization import Worker
from astromesh.providers.options import ModelOptions
from astromesh.providers.service import ServiceProvider, Wire
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

# -- credentials ---------------------------------------------------------------------------------------------

_SERVICE = "bedrock"
#: a minute more than botocore takes: before, it answers without asking anybody
_RENEWAL_SECONDS = 16 * 60
_NO_CREDENTIALS = (
    "No key: there are no AWS credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a "
    "`profile`, run with a role, or set `api_key_env` to the variable of a Bedrock API key."
)


class AwsCredentials:
    """The credentials of one profile, or of the environment: an async context manager.

    botocore reads files and asks the services of roles in a thread of its own.

    Args:
        profile: empty: as the environment says.
    """

    def __init__(self, profile: str) -> None:
        self._session = Session(profile=profile or None)
        self._worker = Worker("aws-credentials")
        self._found: Credentials | None = None
        self.region = ""

    async def __aenter__(self) -> Self:
        try:
            self.region, self._found = await self._worker.run(self._find)
        except BotoCoreError as error:
            raise MissingKey(f"No key: AWS credentials cannot be read: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.__aexit__()

    def _find(self) -> tuple[str, Credentials | None]:
        return self._session.get_config_variable("region") or "", self._session.get_credentials()

    @property
    def exist(self) -> bool:
        return self._found is not None

    async def current(self) -> Any:
        """Returns access key, secret key and token, renewed in time. Raises: ProviderUnavailable."""
        found = self._found
        assert found is not None
        if not (isinstance(found, RefreshableCredentials) and found.refresh_needed(_RENEWAL_SECONDS)):
            return found.get_frozen_credentials()
        try:
            return await self._worker.run(found.get_frozen_credentials)
        except (BotoCoreError, RuntimeError) as error:
            raise ProviderUnavailable("cannot be called: the AWS credentials could not be renewed") from error


class Signer:
    """Signs calls with Signature Version 4: an `Authorizer`."""

    def __init__(self, credentials: AwsCredentials, region: str) -> None:
        self._credentials, self._region = credentials, region

    async def headers(self, method: str, url: URL, body: bytes) -> Mapping[str, str]:
        request = AWSRequest(method, str(url), {"Content-Type": "application/json"}, body)
        SigV4Auth(await self._credentials.current(), _SERVICE, self._region).add_auth(request)
        return {name.lower(): value for name, value in request.headers.items()}

    def reject(self) -> None:
        """Does nothing: botocore renews what expires."""


# -- reading answers -----------------------------------------------------------------------------------------

_FINISH = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
#: the service could not parse the model's answer; a retry may succeed
_RETRYABLE_REASONS = frozenset({"malformed_model_output", "malformed_tool_use"})


class EventStreamParser(SseParser):
    """Parses AWS's event stream: the data of an event is an object with its type as the only key."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        super().__init__()
        self._buffer = EventStreamBuffer()

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Raises ValueError: it is no event stream, or a checksum is wrong."""
        self._buffer.add_data(chunk)
        try:
            return [_server_event(message.headers, message.payload) for message in self._buffer]
        except ParserError as error:
            raise ValueError(str(error)) from error

    def finish(self) -> list[ServerEvent]:
        return []


def _server_event(headers: Mapping[str, Any], payload: bytes) -> ServerEvent:
    kind = headers.get(":event-type") or headers.get(":exception-type") or headers.get(":error-code") or ""
    if headers.get(":message-type") == "error":  # it has no payload
        payload = orjson.dumps({"message": headers.get(":error-message")})
    return ServerEvent(b"{%s:%s}" % (orjson.dumps(kind), payload))


class BedrockReader(StreamReader):
    """Reads one stream of ConverseStream.

    Args:
        owner: the model to which its thoughts are sent back.
    """

    def __init__(self, owner: str) -> None:
        super().__init__(EventStreamParser())
        self._owner = owner
        #: tool calls and thoughts by their number: the block, and its streamed texts
        self._blocks: dict[int, tuple[JsonObject, dict[str, TextBuffer]]] = {}
        self._finish = ""
        self._counts: TokenCounts | None = None

    def partial(self) -> Reply:
        blocks = [_finished_block(*grown) for grown in self._blocks.values()]
        calls = tuple(
            ToolCall("", block["toolUse"]["name"], text) for block, text in blocks if "toolUse" in block
        )
        return Reply(self._text.getvalue(), calls, "", self._counts)

    def reply(self) -> Reply:
        """Raises: ProviderUnavailable: the end is missing, or the service could not parse the answer."""
        if not self._finish:
            raise truncated_answer()
        blocks = [_finished_block(*self._blocks[index]) for index in sorted(self._blocks)]
        return _reply(self._text.getvalue(), _calls(blocks, self._owner), self._finish, self._counts)

    def read_event(self, data: bytes) -> Any:
        ((kind, event),) = parse_json(data).items()
        if kind == "contentBlockDelta":
            return self._delta(event["contentBlockIndex"], event["delta"])
        if kind == "contentBlockStart":
            if tool_use := event["start"].get("toolUse"):
                self.size += CALL_SIZE
                self._blocks[event["contentBlockIndex"]] = {"toolUse": tool_use}, {}
        elif kind == "messageStop":
            self._finish = event["stopReason"]
        elif kind == "metadata":
            self._counts, self.done = token_counts(event.get("usage")), bool(self._finish)
        elif "message" in event and kind != "messageStart":
            error_type = kind[:1].upper() + kind[1:]  # as the header of a whole answer names it
            raise provider_errors.from_body({"type": error_type, "message": event["message"]})
        return ""

    def _delta(self, index: int, delta: JsonObject) -> Any:
        if "toolUse" in delta:
            self._grow(index, "input", delta["toolUse"]["input"])
        for name, piece in (delta.get("reasoningContent") or {}).items():
            if index not in self._blocks:
                self.size += CALL_SIZE
                self._blocks[index] = {"reasoningContent": {}}, {}
            self._grow(index, name, piece)
        return delta.get("text", "")

    def _grow(self, index: int, name: str, piece: str) -> None:
        self.size += utf8_size(piece)
        self._blocks[index][1].setdefault(name, TextBuffer()).write(piece)


def _finished_block(block: JsonObject, streamed: Mapping[str, TextBuffer]) -> tuple[JsonObject, str]:
    """Returns a block with its streamed texts, and the streamed input of a tool call."""
    grown = {name: text.getvalue() for name, text in streamed.items()}
    arguments = grown.pop("input", "")
    if "reasoningContent" in block:
        redacted = grown.pop("redactedContent", "")
        block = {"reasoningContent": {"redactedContent": redacted} if redacted else {"reasoningText": grown}}
    return block, arguments


def _calls(blocks: Iterable[tuple[JsonObject, str]], owner: str) -> tuple[ToolCall, ...]:
    """Returns the tool calls among blocks with their streamed input; each has the thoughts before it."""
    return with_thoughts(map(_thought_or_call, blocks), owner)


def _thought_or_call(found: tuple[JsonObject, str]) -> JsonObject | ToolCall | None:
    block, streamed = found
    if "reasoningContent" in block:
        return {"reasoningContent": block["reasoningContent"]}
    if not (tool_use := block.get("toolUse")):
        return None
    return ToolCall(tool_use["toolUseId"], tool_use["name"], streamed or input_of(tool_use))


def _reply(text: str, calls: tuple[ToolCall, ...], reason: str, counts: TokenCounts | None) -> Reply:
    if reason in _RETRYABLE_REASONS:
        raise ProviderUnavailable(f"did not finish its answer: {reason}")
    return require_content(Reply(text, calls, _FINISH.get(reason, "stop"), counts), reason)


def token_counts(usage: Any) -> TokenCounts | None:
    """Returns the reported tokens. The API counts cached tokens separately; here they are part of `input`."""
    if not usage:
        return None
    read, written = usage.get("cacheReadInputTokens") or 0, usage.get("cacheWriteInputTokens") or 0
    return TokenCounts(
        sum_counts(usage.get("inputTokens"), read, written), usage.get("outputTokens"), read, written
    )


# -- writing requests ----------------------------------------------------------------------------------------

#: the API's names of the common parameters, of which its models share these
_NAMES = {"max_tokens": "maxTokens", "top_p": "topP"}
_COMMON = ("maxTokens", "temperature", "topP", "stopSequences")
_PARAMETERS = frozenset({"temperature", "top_p", "max_tokens", "stop"})
#: parameters of the request itself; others are fields of the model's own
_TOP_LEVEL = (
    "additionalModelRequestFields", "additionalModelResponseFieldPaths", "guardrailConfig",
    "performanceConfig", "promptVariables", "requestMetadata", "serviceTier",
)  # fmt: skip
_CACHE_POINT: JsonObject = {"cachePoint": {"type": "default"}}
#: models that take marks for their cache everywhere; others reject the request
_CACHES = re.compile(r"anthropic\.claude-(?!v\d|instant|3-(haiku|sonnet|opus|5-sonnet))")
#: models of which an output schema can be asked; others reject the request
_STRUCTURED = re.compile(r"anthropic\.claude-(opus|sonnet|haiku)-(4-[5-9]|[5-9])(?!\d{3})")
_UNAVAILABLE = "Is not available any more. Do not call it."
_BEARER = "AWS_BEARER_TOKEN_BEDROCK"
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
#: what a document's name may not have
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9\-()\[\]]+")


class BedrockOptions(ModelOptions):
    """Options of `bedrock`."""

    reserved: ClassVar[tuple[str, ...]] = ("messages", "model", "modelId", "stream", "system", "tools")

    region: str = Field(
        "",
        pattern=r"^[a-z0-9-]*$",
        description="AWS region, e.g. eu-central-1; empty: as AWS_REGION or the profile says.",
    )
    profile: str = Field("", description="Profile of AWS's configuration files; empty: AWS_PROFILE or none.")
    prompt_cache: bool | None = Field(
        None,
        description="Mark tools, system prompt and conversation for the service's cache; absent: for models "
        "of Anthropic that have one.",
    )
    structured_output: Literal["auto", "json_schema", "prompt"] = Field(
        "auto",
        description="How an output schema is requested: by JSON Schema, or only in the prompt. `auto`: by "
        "JSON Schema from models of Anthropic that accept it.",
    )


class Bedrock(Wire[BedrockOptions]):
    """The plugin `bedrock`: requests and answers of one model."""

    Options = BedrockOptions
    kind, usual_endpoint = "bedrock", ""
    ping_path = "/"

    def __init__(self, options: BedrockOptions) -> None:
        super().__init__(options)
        self.capabilities = replace(self.capabilities, parameters=_PARAMETERS)
        model = quote(options.model_name, safe="")
        self.path, self.stream_path = f"/model/{model}/converse", f"/model/{model}/converse-stream"
        self._parameters = renamed(options.parameters, _NAMES, "stopSequences")
        self._owner = f"bedrock/{self.model}"
        how, caches = options.structured_output, options.prompt_cache
        self._native = how == "json_schema" or (how == "auto" and bool(_STRUCTURED.search(self.model)))
        has_cache = bool(_CACHES.search(self.model)) if caches is None else caches
        self._mark = [_CACHE_POINT] if has_cache else []
        self._tools = FragmentCache(lambda tools: [*map(_declared, tools), *self._mark])

    @classmethod
    async def open(cls, options: BedrockOptions, deps: Deps) -> ServiceProvider:
        """Raises: MissingKey: there is no key, and there are no credentials. ConfigError: no region."""
        key = read_key(options, deps.config_dir) or ("" if options.endpoint else os.environ.get(_BEARER, ""))
        found: AwsCredentials = await deps.resources.shared(
            ("aws credentials", options.profile), lambda: AwsCredentials(options.profile)
        )
        region = options.region or os.environ.get("AWS_REGION") or found.region
        if not region:
            raise ConfigError(
                f"The provider {options.name or cls.kind!r} needs a region: set `region` or AWS_REGION."
            )
        if not (key or found.exist):
            raise MissingKey(_NO_CREDENTIALS)
        placed = options.model_copy(update={"endpoint": options.endpoint or _endpoint(region)})
        return cls.provider(placed, key, deps.http, None if key else Signer(found, region))

    def encode(self, request: CompletionRequest, stream: bool) -> bytes:
        body: JsonObject = {}
        system = [m.content for m in request.messages if m.role == "system" and m.content.strip()]
        if request.output_schema is not None:
            self._ask_for_json(body, system, request)
        if system:
            body["system"] = [{"text": "\n\n".join(system)}, *self._mark]
        if tools := self._tool_config(request):
            body["toolConfig"] = tools
        messages = [m for m in request.messages if m.role != "system"]
        body["messages"] = turns = alternating_turns(messages, "assistant", "content", self._blocks)
        # the next call of the conversation reads everything up to here from the cache
        turns[-1]["content"] += self._mark
        parameters = {**self._parameters, **renamed(request.parameters, _NAMES, "stopSequences")}
        if (parameters.get("thinking") or {}).get("type") == "enabled" and has_foreign_calls(
            messages, self._owner
        ):
            del parameters["thinking"]
        self._put(body, parameters)
        return orjson.dumps(body)

    def decode(self, payload: Any) -> Reply:
        blocks = payload["output"]["message"]["content"]
        text = "".join(block["text"] for block in blocks if "text" in block)
        calls = _calls(((block, "") for block in blocks), self._owner)
        return _reply(text, calls, payload.get("stopReason") or "", token_counts(payload.get("usage")))

    def token_counts(self, payload: Any) -> TokenCounts | None:
        return token_counts(payload["usage"])

    def reader(self) -> BedrockReader:
        return BedrockReader(self._owner)

    def _ask_for_json(self, body: JsonObject, system: list[str], request: CompletionRequest) -> None:
        strict = close_objects(request.output_schema or {}) if self._native else None
        if strict is None:
            system.append(json_instruction(request))
            return
        schema = {"schema": orjson.dumps(strict).decode(), "name": "answer"}
        body["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}

    def _tool_config(self, request: CompletionRequest) -> JsonObject:
        """Returns the offered tools. A conversation with calls needs tools, even if none may be called."""
        if request.tools and request.tool_choice != "none":
            config: JsonObject = {"tools": self._tools.of(request.tools)}
            if request.tool_choice != "auto":
                choice = {"tool": {"name": request.tool_choice}}
                config["toolChoice"] = {"any": {}} if request.tool_choice == "required" else choice
            return config
        tool_names = sorted({call.name for message in request.messages for call in message.tool_calls})
        return (
            {"tools": [_declared(ToolSpec(name, _UNAVAILABLE)) for name in tool_names]} if tool_names else {}
        )

    def _put(self, body: JsonObject, parameters: JsonObject) -> None:
        body.update({name: parameters.pop(name) for name in _TOP_LEVEL if name in parameters})
        if common := {name: parameters.pop(name) for name in _COMMON if name in parameters}:
            body["inferenceConfig"] = common
        if own := {**body.pop("additionalModelRequestFields", {}), **parameters}:
            body["additionalModelRequestFields"] = own

    def _blocks(self, message: Message) -> list[JsonObject]:
        """The content of a message; the model receives its own thoughts before the calls they led to."""
        if message.role == "tool":
            content = [{"text": message.content if message.content.strip() else "(empty)"}]
            return [{"toolResult": {"toolUseId": message.tool_call_id, "content": content}}]
        attached = [*map(_attached, message.attachments)]
        text = message.content if message.content.strip() else ""  # the API rejects blank texts
        if not text and any("document" in block for block in attached):  # and documents without a text
            text = "(see the document)"
        parts = [{"text": text}] if text else []
        return [*attached, *thoughtful_parts(message, self._owner, parts, _tool_use_part)]


def _tool_use_part(call: ToolCall) -> JsonObject:
    tool_use = {"toolUseId": call.id, "name": call.name, "input": arguments_object(call.arguments)}
    return {"toolUse": tool_use}


def _endpoint(region: str) -> str:
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://bedrock-runtime.{region}.{domain}"


def _declared(tool: ToolSpec) -> JsonObject:
    described = {"name": tool.name, "description": tool.description or tool.name}
    return {"toolSpec": {**described, "inputSchema": {"json": dict(tool.parameters)}}}


def _attached(one: Attachment) -> JsonObject:
    if not one.data:
        raise ProviderRejected("Bedrock accepts attachments as data, not as URLs.")
    source = {"bytes": one.data}
    if one.kind == "image":
        if one.media_type not in _IMAGES:
            raise ProviderRejected(f"Bedrock takes no images of {one.media_type}.")
        return {"image": {"format": _IMAGES[one.media_type], "source": source}}
    if one.media_type != "application/pdf":
        raise ProviderRejected(f"Bedrock takes no {one.kind} of {one.media_type}.")
    # documents of one conversation need different names
    digest = one.sha256 or hashlib.sha256(one.data.encode()).hexdigest()
    name = _NOT_IN_NAMES.sub("-", one.name.removesuffix(".pdf"))[:100]
    return {"document": {"format": "pdf", "name": f"{name or 'file'}-{digest[:8]}", "source": source}}
