"""A model behind an HTTP service: the `Provider` that all wire formats share.

This module makes the calls and handles deadlines, errors, usage and prices; wire formats encode and decode.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

from yarl import URL

from astromesh.errors import (
    ConfigError,
    NetError,
    NetUnreachable,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from astromesh.net import provider_errors
from astromesh.net.http import MAX_BODY, MAX_STREAM, Http
from astromesh.providers.base import Capabilities
from astromesh.providers.catalog import cost
from astromesh.providers.options import ModelOptions, Price
from astromesh.providers.wire import (
    WRONG_SHAPE,
    Reply,
    StreamReader,
    TokenCounts,
    Wire,
    join_surrogates,
    parse_json,
)
from astromesh.tokens import estimate, estimate_request
from astromesh.types import CompletionRequest, CompletionResult, Delta, ToolCall, Usage, attach_usage

_ERROR_BYTES = 64 * 1024
_PING_SECONDS = 5.0
#: estimated tokens of an answer
_USUAL_OUTPUT = 256
#: a larger count is an error of the service
_MAX_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Service:
    """The endpoint, features and price of a model.

    Args:
        provider, model: names in answers, errors and metrics.
        endpoint: base URL.
        headers: of every call, with the key.
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
        service: the endpoint and its model.
        wire: its wire format.
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
        body = self._encode(request, stream=False)
        with _UsageRecorder(self, request):
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
                raise self._with_name(provider_errors.from_net_error(error)) from error
        if answer.status != 200:
            raise self._status_error(answer.status, answer.headers, answer.body)
        return self._result(request, self._decode(answer.body), started)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        started = perf_counter()
        body = self._encode(request, stream=True)
        reader = self._wire.reader()
        with _UsageRecorder(self, request, reader):
            try:
                async with self._http.stream(
                    "POST",
                    self._stream_url,
                    body=body,
                    headers=self._headers,
                    read_timeout=self._service.timeout,
                    limit=MAX_STREAM,
                ) as incoming:
                    if incoming.status != 200:
                        body = await incoming.read(_ERROR_BYTES)
                        raise self._status_error(incoming.status, incoming.headers, body)
                    if incoming.headers.get("content-type", "").startswith("application/json"):
                        # an endpoint without streaming sends the whole answer
                        reply = self._decode(await incoming.read())
                        if reply.content:
                            yield Delta(reply.content)
                        yield self._result(request, reply, started)
                        return
                    while not reader.done and (chunk := await incoming.chunk()):
                        for text in self._feed(reader, chunk):
                            yield Delta(text)
                        if reader.size > MAX_BODY:
                            raise incoming.too_large(MAX_BODY)
                    await incoming.drain()
            except NetError as error:
                raise self._with_name(provider_errors.from_net_error(error)) from error
            reply = self._finish(reader)
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
            raise self._with_name(provider_errors.from_net_error(error)) from error
        # an error for this path is an answer, too
        if answer.status in (401, 402, 403) or answer.status >= 500:
            raise self._status_error(answer.status, answer.headers, b"")
        if answer.status == 200:
            return None
        return f"could not be checked: GET {self._wire.ping_path} answered {answer.status}"

    async def close(self) -> None:
        """Does nothing: the session is shared."""

    # -- reading and writing ---------------------------------------------------------------------------

    def _encode(self, request: CompletionRequest, *, stream: bool) -> bytes:
        try:
            return self._wire.encode(request, stream)
        except ProviderError as error:
            raise self._with_name(error) from None
        except (TypeError, ValueError) as error:  # orjson: lone surrogates, numbers beyond 64 bits
            raise self._with_name(
                ProviderRejected("JSON cannot represent a value of the request, e.g. invalid Unicode.")
            ) from error

    def _decode(self, body: bytes) -> Reply:
        payload: Any = None
        try:
            payload = parse_json(body)
            if isinstance(payload, dict) and payload.get("error"):
                raise provider_errors.from_body(payload["error"], self._secrets)
            return _validate(self._wire.decode(payload))
        except ProviderError as error:
            raise self._with_usage(self._with_name(error), payload) from None
        except WRONG_SHAPE as error:
            raise self._with_usage(self._format_error(), payload) from error

    def _with_usage(self, error: ProviderError, payload: Any) -> ProviderError:
        """Adds the tokens that the service reported for an unreadable answer to its error."""
        try:
            counted = _plausible_counts(Reply(counts=self._wire.token_counts(payload)))
        except WRONG_SHAPE:
            return error
        if counted is not None:
            attach_usage(error, self._price_usage(counted))
        return error

    def _feed(self, reader: StreamReader, chunk: bytes) -> Iterator[str]:
        try:
            yield from reader.feed(chunk)
        except ProviderError as error:
            raise self._with_name(error) from None
        except WRONG_SHAPE as error:
            raise self._format_error() from error

    def _finish(self, reader: StreamReader) -> Reply:
        try:
            return _validate(reader.finish())
        except ProviderError as error:
            raise self._with_name(error) from None
        except WRONG_SHAPE as error:
            raise self._format_error() from error

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
        counted = reply.counts
        if counted is not None and counted.input is not None and counted.output is not None:
            return self._price_usage(counted)
        return self._price_usage(_fill_counts(counted, request, _estimated_output(reply)), estimated=True)

    def _price_usage(self, counted: TokenCounts, *, estimated: bool = False) -> Usage:
        price = self._service.price
        inputs, outputs, cached, written = counted
        inputs, outputs = inputs or 0, outputs or 0
        spent = cost(price, inputs, outputs, cached, written) if price is not None else 0.0
        return Usage(inputs, outputs, cached, spent, estimated)

    def partial_usage(self, request: CompletionRequest, reply: Reply) -> Usage:
        """The usage of an incomplete answer: the reported tokens, else an estimate."""
        so_far, output = _plausible_counts(reply), _estimated_output(reply)
        if so_far is not None and so_far.output is not None:
            if so_far.output < output:
                so_far = so_far._replace(output=None)
            elif so_far.input is not None:
                return self._price_usage(so_far)
        return self._price_usage(_fill_counts(so_far, request, output), estimated=True)

    def _status_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return self._with_name(provider_errors.from_status(status, headers, body, self._secrets))

    def _with_name(self, error: ProviderError) -> ProviderError:
        error.provider = self.name
        return error

    def _format_error(self) -> ProviderError:
        message = "answered something that is not of its wire format"
        return ProviderUnavailable(message, provider=self.name, retryable=False)


class _UsageRecorder:
    """Adds the usage of a call to the error that ends it.

    The usage is what the service reported, else an estimate. Requests that the service rejected or never
    received cost nothing. Cancelled calls and timeouts count as received.
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
        reply = self._partial_reply()
        given_up = isinstance(error, asyncio.CancelledError) or (
            isinstance(error, ProviderTimeout)
            and not error.upstream_status
            and not isinstance(error.__cause__, NetUnreachable)
        )
        if given_up or reply.content or reply.tool_calls or _plausible_counts(reply):
            attach_usage(error, self._provider.partial_usage(self._request, reply))

    def _partial_reply(self) -> Reply:
        try:
            return self._reader.partial() if self._reader is not None else Reply()
        except WRONG_SHAPE:
            return Reply()


def _estimated_output(reply: Reply) -> int:
    # calls of an incomplete answer may have parts that are not text
    calls = sum(estimate(str(c.name)) + estimate(str(c.arguments)) for c in reply.tool_calls)
    return estimate(reply.content) + calls


def _fill_counts(counted: TokenCounts | None, request: CompletionRequest, output: int) -> TokenCounts:
    """The counts, with estimates of missing ones."""
    if counted is None or counted.input is None:  # without a total, its parts say nothing
        outputs = counted.output if counted is not None else None
        return TokenCounts(estimate_request(request), output if outputs is None else outputs)
    return counted if counted.output is not None else counted._replace(output=output)


def _validate(reply: Reply) -> Reply:
    """Returns the reply with whole characters; implausible counts are dropped.

    Raises:
        TypeError: an id, a name or arguments of a tool call are not text.
    """
    read: list[Any] = [part for c in reply.tool_calls for part in (c.id, c.name, c.arguments)]
    if not all(part and isinstance(part, str) for part in read):
        raise TypeError("a tool call with a part that is not text")
    calls = tuple(
        ToolCall(join_surrogates(c.id), join_surrogates(c.name), join_surrogates(c.arguments), c.kept)
        for c in reply.tool_calls
    )
    return Reply(join_surrogates(reply.content), calls, reply.finish_reason, _plausible_counts(reply))


def _plausible_counts(reply: Reply) -> TokenCounts | None:
    counted = reply.counts
    if counted is None:
        return None
    inputs, outputs, cached, written = (
        int(n) if isinstance(n, int | float) and 0 <= n <= _MAX_TOKENS else None for n in counted
    )
    if cached is None or written is None or (inputs is None and outputs is None):
        return None
    return TokenCounts(inputs, outputs, cached, written)


def _url(text: str) -> URL:
    # a model's name may contain quoted characters
    return URL(text, encoded="%" in text)


def service_of(
    options: ModelOptions, kind: str, endpoint: str, headers: Mapping[str, str], **features: Any
) -> Service:
    """Returns the service of a block.

    Args:
        options: the block.
        kind: the plugin's name, the default name of the block.
        endpoint: the service's own base URL, the default endpoint of the block.
        headers: with the key.
        features: `capabilities` and `price`.

    Raises:
        ConfigError: no model is named.
    """
    if not options.model_name:
        raise ConfigError(f"The provider {options.name or kind!r} needs a model.")
    name, url = options.name or kind, options.endpoint or endpoint
    merged = {**headers, **options.own_headers}
    return Service(name, options.model_name, url, merged, options.timeout, **features)
