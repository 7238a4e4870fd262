"""The common part of the wire formats of model services: records, the reader of a stream, details of JSON.

Everything here is pure; `astromesh.providers.service` makes the calls.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from msgspec.structs import replace

from astromesh.errors import ProviderUnavailable
from astromesh.net.stream_parsers import SseParser
from astromesh.text import TextBuffer
from astromesh.tokens import utf8_size
from astromesh.types import CompletionRequest, JsonObject, Message, ToolCall, ToolSpec

#: cached lists of tools
_MAX_FRAGMENTS = 256


class FragmentCache:
    """The JSON of offered tools by the identity of their specs.

    Args:
        encode: returns the specs in the wire format's own form.
    """

    __slots__ = ("_encode", "_fragments")

    def __init__(self, encode: Callable[[tuple[ToolSpec, ...]], Any]) -> None:
        self._encode = encode
        # the specs stay beside their ids: an id may be reused after its object is deleted
        self._fragments: dict[tuple[int, ...], tuple[tuple[ToolSpec, ...], orjson.Fragment]] = {}

    def of(self, tools: tuple[ToolSpec, ...]) -> orjson.Fragment:
        key = tuple(map(id, tools))
        found = self._fragments.get(key)
        if found is None:
            if len(self._fragments) >= _MAX_FRAGMENTS:
                self._fragments.clear()
            found = tools, orjson.Fragment(orjson.dumps(self._encode(tools), default=dict))
            self._fragments[key] = found
        return found[1]


# -- model state ---------------------------------------------------------------------------------------------
# Anthropic and Gemini require their signed thoughts back with their own tool calls. The state is stored with
# the call (`ToolCall.kept`), also in the records of durable runs. Other models do not receive it.


def pack_model_state(model: str, value: Any) -> str:
    """Encodes a value of a model for `ToolCall.kept`."""
    return orjson.dumps([model, value]).decode()


def unpack_model_state(call: ToolCall, model: str) -> Any:
    """Returns the value that this model stored with the call, None if there is none."""
    if not call.kept:
        return None
    owner, value = orjson.loads(call.kept)
    return value if owner == model else None


def with_thoughts(found: Iterable[JsonObject | ToolCall | None], owner: str) -> tuple[ToolCall, ...]:
    """Returns the calls of an answer, each with the thoughts before it as the state of its model.

    Args:
        found: thoughts and calls in the order of the answer; None: something else.
        owner: the model to which its thoughts are sent back.
    """
    calls: list[ToolCall] = []
    thoughts: list[JsonObject] = []
    for one in found:
        if isinstance(one, ToolCall):
            calls.append(replace(one, kept=pack_model_state(owner, thoughts)) if thoughts else one)
            thoughts = []
        elif one is not None:
            thoughts.append(one)
    return tuple(calls)


def thoughtful_parts(
    message: Message, owner: str, text: list[JsonObject], encode: Callable[[ToolCall], JsonObject]
) -> list[JsonObject]:
    """Returns text and calls of a message; the model receives its own thoughts before the calls they led to.

    Args:
        text: as a part, if there is one; it stands behind the first thoughts, which begin a message.
        encode: returns a call as a part.
    """
    parts = list(text)
    for number, call in enumerate(message.tool_calls):
        thoughts = unpack_model_state(call, owner) or []
        parts = [*parts, *thoughts] if number else [*thoughts, *parts]
        parts.append(encode(call))
    return parts


def has_foreign_calls(messages: Sequence[Message], owner: str) -> bool:
    """Whether the tool loop has calls of another model: inside one, Anthropic's models start no thinking."""
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.tool_calls and unpack_model_state(message.tool_calls[0], owner) is None:
            return True
    return False


# -- surrogate pairs -----------------------------------------------------------------------------------------
# JSON writes a character beyond U+FFFF as two escapes (RFC 8259, section 7). Services that count UTF-16 code
# units may split the two over events: neither is a character by itself.


def parse_json(data: bytes | str) -> Any:
    """Parses JSON whose strings may contain halves of surrogate pairs.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        escape = b"\\ud" if isinstance(data, bytes) else "\\ud"
        if escape not in data.lower():  # type: ignore[operator]
            raise
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def join_surrogates(text: str) -> str:
    """Joins the pairs of a text; a single half becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


# -- answers -------------------------------------------------------------------------------------------------

#: errors of decoding an answer of another shape
WRONG_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
#: bytes that a streamed tool call counts for beside its text: finding the call of a piece takes longer with
#: more calls
CALL_SIZE = 8192


class TokenCounts(NamedTuple):
    """Tokens that a service reported. None: not reported.

    `cached` and `written` are parts of `input`, `reasoning` is a part of `output`.
    """

    input: int | None = 0
    output: int | None = 0
    cached: int = 0
    written: int = 0
    reasoning: int = 0


class Reply(NamedTuple):
    """A decoded answer. `counts` is None if the service reported no tokens; `model` may be empty."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    counts: TokenCounts | None = None
    model: str = ""


class StreamReader(ABC):
    """Reads one streamed answer.

    Args:
        parser: splits the body into events.

    Attributes:
        done: whether the service has ended the answer.
        size: bytes of the answer so far: texts, tool calls, thoughts.
    """

    def __init__(self, parser: SseParser) -> None:
        self.done = False
        self.size = 0
        self._parser = parser
        self._text = TextBuffer()
        #: first half of a surrogate pair whose second half has not arrived
        self._half = ""

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yields the text deltas of a chunk, also those before a fault in the same chunk.

        Raises:
            ProviderError, WRONG_SHAPE: the service reports an error, or the chunk has another shape.
        """
        for event in self._parser.feed(chunk):
            if text := self.add(self.read_event(event.data)):
                yield text

    def finish(self) -> Reply:
        """Returns the whole answer. Raises: ProviderUnavailable: the stream ended early."""
        for event in self._parser.finish():
            self.add(self.read_event(event.data))
        return self.reply()

    def add(self, text: str) -> str:
        """Adds text to the answer; returns it without an open half of a surrogate pair."""
        if self._half or not text.isascii():
            text, self._half = self._half + text, ""
            if "\ud800" <= text[-1:] <= "\udbff":
                text, self._half = text[:-1], text[-1]
            text = join_surrogates(text)
            self.size += utf8_size(text)
        else:
            self.size += len(text)
        if text:
            self._text.write(text)
        return text

    @abstractmethod
    def read_event(self, data: bytes) -> str:
        """Reads one event and returns its text."""

    @abstractmethod
    def reply(self) -> Reply:
        """Returns the whole answer. Raises: ProviderUnavailable: it ended early."""

    @abstractmethod
    def partial(self) -> Reply:
        """Returns the part of an incomplete answer that has arrived."""


def latest_counts(newest: TokenCounts | None, before: TokenCounts | None) -> TokenCounts | None:
    """Returns the newest counts, which are totals so far; missing ones keep their earlier values."""
    if before is None or newest is None:
        return newest or before
    inputs = before.input if newest.input is None else newest.input
    outputs = before.output if newest.output is None else newest.output
    return newest._replace(input=inputs, output=outputs)


def sum_counts(count: Any, *more: Any) -> int | None:
    """Adds counts; None if the first is missing, the implausible -1 if they are not numbers."""
    if count is None:
        return None
    try:
        return sum((other or 0 for other in more), count)
    except TypeError:
        return -1


def text_of(value: Any) -> str:
    """Returns the text of a `content` field: a string, null, or parts with text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return "".join(part["text"] for part in value if part.get("type") == "text")


def arguments_of(value: Any, empty: str = "{}") -> str:
    """Returns the JSON text of a call's arguments; some services send the object itself."""
    if isinstance(value, str):
        return value or empty
    return empty if value is None else orjson.dumps(value).decode()


def input_of(call: JsonObject) -> str:
    """Returns the JSON text of the `input` of a call."""
    return orjson.dumps(call.get("input") or {}).decode()


def arguments_object(text: str) -> JsonObject:
    """Returns the arguments of a call as an object, which some services require.

    Invalid arguments are sent as `{"invalid": TEXT}`; the result that follows reports the model's error.
    """
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"invalid": text}


def alternating_turns(
    messages: Iterable[Message], assistant: str, key: str, encode: Callable[[Message], list[JsonObject]]
) -> list[JsonObject]:
    """Returns messages as turns with alternating roles, the user's first.

    Results of parallel calls become one turn.

    Args:
        assistant: the service's role of the model.
        key: of the parts of a turn.
        encode: returns the parts of a message.
    """
    turns: list[JsonObject] = []
    for message in messages:
        role = assistant if message.role == "assistant" else "user"
        parts = encode(message)
        if turns and turns[-1]["role"] == role:
            turns[-1][key] += parts
        elif parts:
            turns.append({"role": role, key: parts})
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", key: encode(Message("user", "(no text)"))})
    return turns


def renamed(parameters: Mapping[str, Any], names: Mapping[str, str], stop: str) -> JsonObject:
    """Returns parameters with a service's own names. Args: stop: the name of its list of stop texts."""
    result = {names.get(name, name): value for name, value in parameters.items()}
    if "stop" in result:
        texts = result.pop("stop")
        result[stop] = [texts] if isinstance(texts, str) else list(texts)
    return result


def json_instruction(request: CompletionRequest) -> str:
    """Returns an instruction with the output schema, for services that cannot receive it in another way."""
    schema = orjson.dumps(request.output_schema, default=dict).decode()
    first = "Call tools as long as you need them. " if request.tools else ""
    return f"{first}Answer with nothing but JSON that fits this JSON Schema: {schema}"


def with_schema_instruction(request: CompletionRequest) -> tuple[Message, ...]:
    """Returns the messages with the schema in the system message, so that all calls of a run begin alike."""
    words, messages = json_instruction(request), request.messages
    if not messages or messages[0].role != "system":
        return (Message("system", words), *messages)
    system = replace(messages[0], content=f"{messages[0].content}\n\n{words}".strip())
    return (system, *messages[1:])


def truncated_answer() -> ProviderUnavailable:
    return ProviderUnavailable("ended its answer too early")


def require_content(reply: Reply, reason: object) -> Reply:
    """Returns the reply. Raises: ProviderUnavailable: it has no text, no call and no finish reason."""
    if not (reason or reply.content or reply.tool_calls):
        raise ProviderUnavailable("ended its answer without any content")
    return reply


# -- JSON Schema for constrained decoding --------------------------------------------------------------------
# For models of Anthropic, objects are closed, few keywords are allowed, and other keywords move to the
# description. Source: https://docs.claude.com/en/docs/build-with-claude/structured-outputs

_KEYWORDS = frozenset({"type", "description", "title", "enum", "const", "required", "$ref"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_MAPS = ("properties", "$defs")
_LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}


def close_objects(schema: Mapping[str, Any]) -> JsonObject | None:
    """Returns the schema with every object closed; None if it contains objects of open shape."""
    try:
        return _close_schema(schema)
    except _OpenShape:
        return None


class _OpenShape(ValueError):
    pass


def _close_schema(schema: Any) -> JsonObject:
    if not isinstance(schema, Mapping):
        raise _OpenShape
    result: JsonObject = {key: value for key, value in schema.items() if key in _KEYWORDS}
    for key in _MAPS:
        if key in schema:
            result[key] = {name: _close_schema(inner) for name, inner in schema[key].items()}
    for key, becomes in _LISTS.items():
        if key in schema:
            result[becomes] = [_close_schema(inner) for inner in schema[key]]
    if "items" in schema:
        result["items"] = _close_schema(schema["items"])
    if schema.get("format") in _FORMATS:
        result["format"] = schema["format"]
    if not _is_definite(schema, result):
        raise _OpenShape
    if "properties" in result:
        result["additionalProperties"] = False
    return _with_description(schema, result)


def _is_definite(schema: Mapping[str, Any], result: JsonObject) -> bool:
    """Whether a grammar can represent it: objects list their properties, other values have a type."""
    if schema.get("type") == "object" or "properties" in schema:
        return bool(schema.get("properties"))
    return bool(result.keys() & {"type", "anyOf", "allOf", "enum", "const", "$ref"})


def _with_description(schema: Mapping[str, Any], result: JsonObject) -> JsonObject:
    """Adds keywords that the grammar cannot represent to the description, for the model to read."""
    known = {*result, *_LISTS, "items", "default", "examples", "$schema", "$id"}
    left = {key: value for key, value in schema.items() if key not in known}
    if left:
        keywords = orjson.dumps(left, default=str).decode()
        result["description"] = "\n\n".join(filter(None, (result.get("description"), keywords)))
    return result
