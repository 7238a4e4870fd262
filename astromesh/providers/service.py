"""A model behind an HTTP service: the `Provider` that all wire formats share.

A wire format says how a request becomes a body and a body a reply, without I/O; here are the calls, the
deadlines, the errors, the usage and its price.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import orjson
from yarl import URL

from astromesh.abc.provider import Capabilities
from astromesh.errors import (
    ConfigError,
    NetError,
    NetUnreachable,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from astromesh.net import faults
from astromesh.net.http import MAX_BODY, MAX_STREAM, Http
from astromesh.providers.catalog import cost
from astromesh.providers.options import ModelOptions, Price, is_http
from astromesh.providers.pairs import loads, whole
from astromesh.tokens import estimate, estimate_request
from astromesh.types import CompletionRequest, CompletionResult, Delta, Message, ToolCall, Usage, charge

#: what a wire format's reading may raise on an answer of another shape
WRONG_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
_ERROR_BYTES = 64 * 1024
_PING_SECONDS = 5.0
#: what a streamed tool call counts for, in bytes, beside its text: the more there are, the longer it takes to
#: find the one that a piece belongs to
CALL_SIZE = 8192
#: tokens of an answer, for estimates before there is one
_USUAL_OUTPUT = 256
#: a count beyond this is a mistake of the service
_MOST_TOKENS = 1_000_000_000


class Counted(NamedTuple):
    """Tokens as a service reported them; `cached` and `written` are parts of `input`. None: not counted."""

    input: int | None = 0
    output: int | None = 0
    cached: int = 0
    written: int = 0


class Reply(NamedTuple):
    """A model's answer as read from the wire. `counted` is None where the service reported nothing."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    counted: Counted | None = None


class StreamReader(Protocol):
    """Reads one streamed answer.

    `done`: the service has said that this was all. `size`: bytes of what the answer says so far: texts, tool
    calls, thoughts.
    """

    done: bool
    size: int

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The text deltas in this chunk, as the service sent them. Raises ProviderError or WRONG_SHAPE.

        An iterator, so that what stands before a fault in the same chunk still goes out.
        """

    def finish(self) -> Reply:
        """The whole answer. Raises ProviderUnavailable where the stream ended early."""

    def so_far(self) -> Reply:
        """What has come of an answer that will never be whole."""


class Wire(Protocol):
    """One wire format for one model."""

    #: paths below the endpoint, possibly with a query
    path: str
    stream_path: str
    ping_path: str

    def encode(self, request: CompletionRequest, stream: bool) -> bytes: ...

    def decode(self, payload: Any) -> Reply: ...

    def counted(self, payload: Any) -> Counted | None:
        """What a whole answer reports of its tokens, also where the rest of it cannot be read."""

    def reader(self) -> StreamReader: ...


@dataclass(frozen=True, slots=True)
class Service:
    """Where a model is and what it is worth.

    Args:
        provider, model: the names shown.
        endpoint: base URL.
        headers: of every call, the key among them.
        timeout: seconds.
    """

    provider: str
    model: str
    endpoint: str
    headers: Mapping[str, str]
    timeout: float
    capabilities: Capabilities
    price: Price | None = None


class ServiceProvider:
    """A `Provider` over HTTP.

    Args:
        service: where and what.
        wire: the format that it speaks.
        http: the shared session.
    """

    def __init__(self, service: Service, wire: Wire, http: Http) -> None:
        self.provider, self.model = service.provider, service.model
        self.name = f"{service.provider}/{service.model}"
        self.endpoint = service.endpoint
        self.capabilities = service.capabilities
        self._service, self._wire, self._http = service, wire, http
        base = service.endpoint.rstrip("/")
        self._url, self._stream_url = _url(base + wire.path), _url(base + wire.stream_path)
        self._ping_url = _url(base + wire.ping_path)
        self._secrets = tuple(v.removeprefix("Bearer ") for v in service.headers.values() if len(v) > 8)
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **service.headers}

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        started = perf_counter()
        body = self._encoded(request, stream=False)
        with _Tab(self, request):
            try:
                answer = await self._http.request(
                    "POST",
                    self._url,
                    body=body,
                    headers=self._headers,
                    timeout=self._service.timeout,
                    resend=True,
                )
            except NetError as error:
                raise self._named(faults.from_net(error)) from error
        if answer.status != 200:
            raise self._refused(answer.status, answer.headers, answer.body)
        return self._result(request, self._decoded(answer.body), started)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        started = perf_counter()
        body = self._encoded(request, stream=True)
        reader = self._wire.reader()
        with _Tab(self, request, reader):
            try:
                async with self._http.stream(
                    "POST",
                    self._stream_url,
                    body=body,
                    headers=self._headers,
                    silence=self._service.timeout,
                    limit=MAX_STREAM,
                ) as incoming:
                    if incoming.status != 200:
                        said = await incoming.read(_ERROR_BYTES)
                        raise self._refused(incoming.status, incoming.headers, said)
                    if incoming.headers.get("content-type", "").startswith("application/json"):
                        # an endpoint that cannot stream answers at once
                        reply = self._decoded(await incoming.read())
                        if reply.content:
                            yield Delta(reply.content)
                        yield self._result(request, reply, started)
                        return
                    while not reader.done and (chunk := await incoming.chunk()):
                        for text in self._fed(reader, chunk):
                            yield Delta(text)
                        if reader.size > MAX_BODY:
                            raise incoming.too_large(MAX_BODY)
                    await incoming.drain()
            except NetError as error:
                raise self._named(faults.from_net(error)) from error
            reply = self._finished(reader)
        yield self._result(request, reply, started)

    def estimated_cost(self, request: CompletionRequest) -> float:
        if self._service.price is None:
            return 0.0
        limit = request.parameters.get("max_tokens", _USUAL_OUTPUT)
        outputs = min(limit, _USUAL_OUTPUT) if isinstance(limit, int) else _USUAL_OUTPUT
        return cost(self._service.price, estimate_request(request), outputs)

    async def ping(self) -> str | None:
        try:
            answer = await self._http.request(
                "GET",
                self._ping_url,
                headers=self._headers,
                timeout=min(_PING_SECONDS, self._service.timeout),
            )
        except NetError as error:
            raise self._named(faults.from_net(error)) from error
        # a service without this path has answered all the same
        if answer.status in (401, 402, 403) or answer.status >= 500:
            raise self._refused(answer.status, answer.headers, b"")
        if answer.status == 200:
            return None
        return f"could not be checked: GET {self._wire.ping_path} answered {answer.status}"

    async def close(self) -> None:
        """Nothing to do: the session is shared."""

    # -- reading and writing ---------------------------------------------------------------------------

    def _encoded(self, request: CompletionRequest, *, stream: bool) -> bytes:
        try:
            return self._wire.encode(request, stream)
        except ProviderError as error:
            raise self._named(error) from None
        except (TypeError, ValueError) as error:  # orjson: lone surrogates, numbers beyond 64 bits
            raise self._named(
                ProviderRejected("The request holds something that has no JSON form, e.g. broken Unicode.")
            ) from error

    def _decoded(self, body: bytes) -> Reply:
        payload: Any = None
        try:
            payload = loads(body)
            if isinstance(payload, dict) and payload.get("error"):
                raise faults.from_body(payload["error"], self._secrets)
            return _sound(self._wire.decode(payload))
        except ProviderError as error:
            raise self._billed(self._named(error), payload) from None
        except WRONG_SHAPE as error:
            raise self._billed(self._unreadable(), payload) from error

    def _billed(self, error: ProviderError, payload: Any) -> ProviderError:
        """The error of an answer that came and cannot be read, with what the service has counted for it."""
        try:
            counted = _believed(Reply(counted=self._wire.counted(payload)))
        except WRONG_SHAPE:
            return error
        if counted is not None:
            charge(error, self._priced(counted))
        return error

    def _fed(self, reader: StreamReader, chunk: bytes) -> Iterator[str]:
        try:
            yield from reader.feed(chunk)
        except ProviderError as error:
            raise self._named(error) from None
        except WRONG_SHAPE as error:
            raise self._unreadable() from error

    def _finished(self, reader: StreamReader) -> Reply:
        try:
            return _sound(reader.finish())
        except ProviderError as error:
            raise self._named(error) from None
        except WRONG_SHAPE as error:
            raise self._unreadable() from error

    def _result(self, request: CompletionRequest, reply: Reply, started: float) -> CompletionResult:
        return CompletionResult(
            reply.content,
            reply.tool_calls,
            self._usage(request, reply),
            self.provider,
            self.model,
            reply.finish_reason,
            (),
            (perf_counter() - started) * 1000,
        )

    def _usage(self, request: CompletionRequest, reply: Reply) -> Usage:
        counted = reply.counted
        if counted is not None and counted.input is not None and counted.output is not None:
            return self._priced(counted)
        return self._priced(_completed(counted, request, _estimated_output(reply)), estimated=True)

    def _priced(self, counted: Counted, *, estimated: bool = False) -> Usage:
        price = self._service.price
        asked, said, cached, written = counted
        asked, said = asked or 0, said or 0
        spent = cost(price, asked, said, cached, written) if price is not None else 0.0
        return Usage(asked, said, cached, spent, estimated)

    def used_by(self, request: CompletionRequest, reply: Reply) -> Usage:
        """What an answer that broke off has cost: what was reported before, beyond it an estimate."""
        so_far, output = _believed(reply), _estimated_output(reply)
        if so_far is not None and so_far.output is not None:
            if so_far.output < output:
                so_far = so_far._replace(output=None)
            elif so_far.input is not None:
                return self._priced(so_far)
        return self._priced(_completed(so_far, request, output), estimated=True)

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return self._named(faults.from_status(status, headers, body, self._secrets))

    def _named(self, error: ProviderError) -> ProviderError:
        error.provider = self.name
        return error

    def _unreadable(self) -> ProviderError:
        said = "answered something that is not of its wire format"
        return ProviderUnavailable(said, provider=self.name, retryable=False)


class _Tab:
    """Notes on whatever ends a call early what it has cost.

    That is what the service had reported, beyond it an estimate. What it refused, and what never arrived,
    costs nothing; of a call that was given up, or took too long, nobody knows: it counts as heard.
    """

    __slots__ = ("_provider", "_reader", "_request")

    def __init__(
        self, provider: ServiceProvider, request: CompletionRequest, reader: StreamReader | None = None
    ) -> None:
        self._provider, self._request, self._reader = provider, request, reader

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        reply = self._so_far()
        given_up = isinstance(error, asyncio.CancelledError) or (
            isinstance(error, ProviderTimeout)
            and not error.status
            and not isinstance(error.__cause__, NetUnreachable)
        )
        if given_up or reply.content or reply.tool_calls or _believed(reply):
            charge(error, self._provider.used_by(self._request, reply))

    def _so_far(self) -> Reply:
        try:
            return self._reader.so_far() if self._reader is not None else Reply()
        except WRONG_SHAPE:
            return Reply()


def _estimated_output(reply: Reply) -> int:
    # of a call that broke off nobody has checked whether it is made of text
    asked = sum(estimate(str(c.name)) + estimate(str(c.arguments)) for c in reply.tool_calls)
    return estimate(reply.content) + asked


def _completed(counted: Counted | None, request: CompletionRequest, output: int) -> Counted:
    """What was counted, with an estimate of what was not."""
    if counted is None or counted.input is None:  # parts of what nobody has counted tell nothing
        said = counted.output if counted is not None else None
        return Counted(estimate_request(request), output if said is None else said)
    return counted if counted.output is not None else counted._replace(output=output)


def fullest(newest: Counted | None, before: Counted | None) -> Counted | None:
    """Counts are totals so far: the newest ones, but for those that came before and are left out now."""
    if before is None or newest is None:
        return newest or before
    asked = before.input if newest.input is None else newest.input
    said = before.output if newest.output is None else newest.output
    return newest._replace(input=asked, output=said)


def summed(count: Any, *more: Any) -> int | None:
    """A count with those beside it; None where it is not there, -1, which nobody believes, of no numbers."""
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
    """The JSON text of a call's arguments, also of services that send the object itself."""
    if isinstance(value, str):
        return value or empty
    return empty if value is None else orjson.dumps(value).decode()


def json_instruction(request: CompletionRequest) -> str:
    """Asks for the request's output schema in words, where the service has no other way."""
    schema = orjson.dumps(request.output_schema, default=dict).decode()
    first = "Call tools as long as you need them. " if request.tools else ""
    return f"{first}Answer with nothing but JSON that fits this JSON Schema: {schema}"


def told_in_words(request: CompletionRequest) -> tuple[Message, ...]:
    """The messages with the output schema in the system message, where every call of a run has it alike."""
    words, messages = json_instruction(request), request.messages
    if not messages or messages[0].role != "system":
        return (Message("system", words), *messages)
    system = replace(messages[0], content=f"{messages[0].content}\n\n{words}".strip())
    return (system, *messages[1:])


def _sound(reply: Reply) -> Reply:
    """The reply, if its tool calls are text; counts that cannot be are none, the answer is worth more.

    Raises:
        TypeError: an id, a name or arguments are something else.
    """
    read: list[Any] = [part for c in reply.tool_calls for part in (c.id, c.name, c.arguments)]
    if not all(part and isinstance(part, str) for part in read):
        raise TypeError("a tool call that is not made of text")
    calls = tuple(ToolCall(whole(c.id), whole(c.name), whole(c.arguments), c.kept) for c in reply.tool_calls)
    return Reply(whole(reply.content), calls, reply.finish_reason, _believed(reply))


def _believed(reply: Reply) -> Counted | None:
    counted = reply.counted
    if counted is None:
        return None
    asked, said, cached, written = (
        int(n) if isinstance(n, int | float) and 0 <= n <= _MOST_TOKENS else None for n in counted
    )
    if cached is None or written is None or (asked is None and said is None):
        return None
    return Counted(asked, said, cached, written)


def _url(text: str) -> URL:
    # as it stands: a model's name may hold what has been quoted
    return URL(text, encoded="%" in text)


def cut() -> ProviderUnavailable:
    return ProviderUnavailable("cut its answer before the end")


def meant(reply: Reply, reason: object) -> Reply:
    """The reply. Raises ProviderUnavailable where it is nothing: no text, no call, no reason for its end."""
    if not (reason or reply.content or reply.tool_calls):
        raise ProviderUnavailable("ended its answer before it had said anything")
    return reply


def service_of(
    options: ModelOptions, kind: str, endpoint: str, headers: Mapping[str, str], **about: Any
) -> Service:
    """The service of a block.

    Args:
        options: the block.
        kind: the plugin's name, shown where the block has no name.
        endpoint: the service's own base URL, used where the block names none.
        headers: the key's, already built.
        about: `capabilities` and `price`.

    Raises:
        ConfigError: no model is named, or the endpoint is no URL.
    """
    if not options.chosen:
        raise ConfigError(f"The provider {options.name or kind!r} needs a model.")
    url = options.endpoint or endpoint
    if not is_http(url):
        raise ConfigError(f"The endpoint of the provider {options.name or kind!r} is no http(s) URL.")
    own = {name: value.get_secret_value() for name, value in options.headers.items()}
    return Service(options.name or kind, options.chosen, url, {**headers, **own}, options.timeout, **about)
