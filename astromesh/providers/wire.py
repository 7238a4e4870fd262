"""What the wire formats of model services share: the `Wire` protocol, its records, and details of JSON.

The functions are pure; `astromesh.providers.service` makes the calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import orjson
from msgspec.structs import replace

from astromesh.errors import ProviderUnavailable
from astromesh.types import CompletionRequest, Message, ToolCall, ToolSpec

_MOST = 256


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
            if len(self._fragments) >= _MOST:
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


class SurrogateJoiner:
    """Joins halves across the deltas of one answer. A half at the end is dropped."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        """Returns the text without an open half."""
        if not self._half and text.isascii():
            return text
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return join_surrogates(text)


#: errors of decoding an answer of another shape
WRONG_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
#: bytes that a streamed tool call counts for beside its text: finding the call of a piece takes longer with
#: more calls
CALL_SIZE = 8192


class TokenCounts(NamedTuple):
    """Tokens that a service reported; `cached` and `written` are parts of `input`. None: not reported."""

    input: int | None = 0
    output: int | None = 0
    cached: int = 0
    written: int = 0


class Reply(NamedTuple):
    """A decoded answer. `counts` is None if the service reported no tokens."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    counts: TokenCounts | None = None


class StreamReader(Protocol):
    """Reads one streamed answer.

    Attributes:
        done: whether the service has ended the answer.
        size: bytes of the answer so far: texts, tool calls, thoughts.
    """

    done: bool
    size: int

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yields the text deltas of a chunk, also those before a fault in the same chunk.

        Raises:
            ProviderError, WRONG_SHAPE: the service reports an error, or the chunk has another shape.
        """

    def finish(self) -> Reply:
        """Returns the whole answer. Raises: ProviderUnavailable: the stream ended early."""

    def partial(self) -> Reply:
        """Returns the part of an incomplete answer that has arrived."""


class Wire(Protocol):
    """One wire format for one model."""

    #: paths below the endpoint, possibly with a query
    path: str
    stream_path: str
    ping_path: str

    def encode(self, request: CompletionRequest, stream: bool) -> bytes: ...

    def decode(self, payload: Any) -> Reply: ...

    def token_counts(self, payload: Any) -> TokenCounts | None:
        """Returns the tokens that a whole answer reports, even if the rest cannot be read."""

    def reader(self) -> StreamReader: ...


def latest_counts(newest: TokenCounts | None, before: TokenCounts | None) -> TokenCounts | None:
    """The newest counts, which are totals so far, with earlier values for those that are missing now."""
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
    """The text of a `content` field: a string, nothing, or parts with text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return "".join(part["text"] for part in value if part.get("type") == "text")


def arguments_of(value: Any, empty: str = "{}") -> str:
    """The JSON text of a call's arguments; some services send the object itself."""
    if isinstance(value, str):
        return value or empty
    return empty if value is None else orjson.dumps(value).decode()


def json_instruction(request: CompletionRequest) -> str:
    """An instruction with the request's output schema, for services without another way to request it."""
    schema = orjson.dumps(request.output_schema, default=dict).decode()
    first = "Call tools as long as you need them. " if request.tools else ""
    return f"{first}Answer with nothing but JSON that fits this JSON Schema: {schema}"


def with_schema_instruction(request: CompletionRequest) -> tuple[Message, ...]:
    """The messages with the output schema in the system message, so that all calls of a run begin alike."""
    words, messages = json_instruction(request), request.messages
    if not messages or messages[0].role != "system":
        return (Message("system", words), *messages)
    system = replace(messages[0], content=f"{messages[0].content}\n\n{words}".strip())
    return (system, *messages[1:])


def truncated_answer() -> ProviderUnavailable:
    return ProviderUnavailable("cut its answer before the end")


def require_content(reply: Reply, reason: object) -> Reply:
    """Returns the reply. Raises: ProviderUnavailable: it has no text, no call and no finish reason."""
    if not (reason or reply.content or reply.tool_calls):
        raise ProviderUnavailable("ended its answer before it sent anything")
    return reply
