"""A model behind an HTTP service: the `Provider` that all wire formats share, and the base of wire formats.

`ServiceProvider` makes the calls and handles deadlines, errors, usage and prices. A `Wire` encodes and
decodes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from time import perf_counter
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

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
from astromesh.net.http import MAX_BODY, MAX_STREAM, Http, read_key
from astromesh.plugins import Deps
from astromesh.providers.authorization import Authorizer
from astromesh.providers.catalog import cost
from astromesh.providers.options import ModelOptions, capabilities_of, price_of
from astromesh.providers.wire import (
    WRONG_SHAPE,
    Reply,
    StreamReader,
    TokenCounts,
    join_surrogates,
    parse_json,
)
from astromesh.telemetry.ids import with_traceparent
from astromesh.tokens import estimate, estimate_request
from astromesh.types import CompletionRequest, CompletionResult, Delta, ToolCall, Usage, attach_usage

_ERROR_BYTES = 64 * 1024
_PING_SECONDS = 5.0
#: for credentials that must be fetched first, which one of many calls waits for
_AUTHORIZE_SECONDS = 30.0
#: tokens of an answer without a limit, for estimates
_USUAL_OUTPUT = 256
#: a larger count is an error of the service
_MAX_TOKENS = 1_000_000_000
_NUMBERS = (int, float)
#: a shorter key may be a part of ordinary words, such as `ollama`: messages of the service keep it
_MAX_WORD = 8
#: characters of the name of the model that has answered
_MAX_MODEL_NAME = 200

OptionsT = TypeVar("OptionsT", bound=ModelOptions)


class Wire(ABC, Generic[OptionsT]):
    """Requests and answers of one model in one wire format; the class is the plugin of the format.

    Args:
        options: the options of the provider's block.

    Attributes:
        kind: the plugin's name, the default name of the block.
        usual_endpoint: the service's own base URL, the default endpoint of the block.
        path, stream_path, ping_path: below the endpoint, possibly with a query.
    """

    Options: ClassVar[type[ModelOptions]]
    kind: ClassVar[str]
    usual_endpoint: ClassVar[str]
    path: str
    stream_path: str
    ping_path: str

    def __init__(self, options: OptionsT) -> None:
        self.model = options.model_name
        self.endpoint = options.endpoint or self.usual_endpoint
        self.capabilities = capabilities_of(options)
        self.price = price_of(options)

    @classmethod
    async def open(cls, options: OptionsT, deps: Deps) -> ServiceProvider:
        """Opens no connection: calls use the shared session.

        Raises:
            MissingKey: the key that the block names is not set.
            ConfigError: no model is named.
        """
        return cls.provider(options, read_key(options, deps.config_dir), deps.http)

    @classmethod
    def provider(
        cls, options: OptionsT, key: str, http: Http, authorizer: Authorizer | None = None
    ) -> ServiceProvider:
        """Returns the provider of a block. Raises: ConfigError: no model is named."""
        if not options.model_name:
            raise ConfigError(f"The provider {options.name or cls.kind!r} needs a model. Set `model`.")
        return ServiceProvider(cls(options), options, key, http, authorizer)

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers of every call with this key, which may be empty."""
        return {"authorization": f"Bearer {key}"} if key else {}

    @abstractmethod
    def encode(self, request: CompletionRequest, stream: bool) -> bytes: ...

    @abstractmethod
    def decode(self, payload: Any) -> Reply: ...

    @abstractmethod
    def token_counts(self, payload: Any) -> TokenCounts | None:
        """Returns the tokens that a whole answer reports, even if the rest cannot be read."""

    @abstractmethod
    def reader(self) -> StreamReader: ...


class ServiceProvider:
    """A `Provider` over HTTP.

    Args:
        wire: the wire format of its model.
        options: the options of its block.
        key: of the service, or empty.
        http: the shared session.
        authorizer: proves with each call who calls; None if the key in the headers does.
    """

    def __init__(
        self,
        wire: Wire[Any],
        options: ModelOptions,
        key: str,
        http: Http,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.provider, self.model = options.name or wire.kind, options.model_name
        self.name = f"{self.provider}/{self.model}"
        self.endpoint = wire.endpoint
        self.capabilities = wire.capabilities
        self._wire, self._http, self._authorizer = wire, http, authorizer
        self._timeout, self._price = options.timeout, wire.price
        base = wire.endpoint.rstrip("/")
        self._url, self._stream_url = _url(base + wire.path), _url(base + wire.stream_path)
        self._ping_url = _url(base + wire.ping_path)
        headers = {**wire.key_headers(key), **options.own_headers}
        values = (value.removeprefix("Bearer ") for value in headers.values())
        self._secrets = tuple(value for value in values if len(value) > _MAX_WORD)
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **headers}

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        started = perf_counter()
        body = self._encode(request, stream=False)
        headers: Mapping[str, str] = self._headers
        if self._authorizer is not None:
            headers = await self._authorized(self._authorizer, "POST", self._url, body)
        headers = with_traceparent(headers)
        try:
            answer = await self._http.request(
                "POST",
                self._url,
                body=body,
                headers=headers,
                timeout=self._timeout,
                resend=True,
            )
        except (NetError, asyncio.CancelledError) as error:
            self._raise_with_usage(error, request, Reply())
        if answer.status != 200:
            raise self._status_error(answer.status, answer.headers, answer.body)
        return self._result(request, self._decode(answer.body), started)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        started = perf_counter()
        body = self._encode(request, stream=True)
        headers: Mapping[str, str] = self._headers
        if self._authorizer is not None:
            headers = await self._authorized(self._authorizer, "POST", self._stream_url, body)
        headers = with_traceparent(headers)
        reader = self._wire.reader()
        try:
            async with self._http.stream(
                "POST",
                self._stream_url,
                body=body,
                headers=headers,
                read_timeout=self._timeout,
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
                    try:
                        for text in reader.feed(chunk):
                            yield Delta(text)
                    except WRONG_SHAPE as error:
                        raise self._format_error() from error
                    if reader.size > MAX_BODY:
                        raise incoming.too_large(MAX_BODY)
                await incoming.drain()
            reply = self._finish(reader)
        except (NetError, ProviderError, asyncio.CancelledError) as error:
            self._raise_with_usage(error, request, _partial_reply(reader))
        yield self._result(request, reply, started)

    def estimated_cost(self, request: CompletionRequest) -> float:
        if self._price is None:
            return 0.0
        limit = request.parameters.get("max_tokens")
        outputs = limit if isinstance(limit, int) else _USUAL_OUTPUT
        return cost(self._price, estimate_request(request), outputs)

    async def ping(self) -> str | None:
        headers: Mapping[str, str] = self._headers
        if self._authorizer is not None:
            headers = await self._authorized(self._authorizer, "GET", self._ping_url, b"")
        try:
            answer = await self._http.request(
                "GET", self._ping_url, headers=headers, timeout=min(_PING_SECONDS, self._timeout)
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

    async def _authorized(self, authorizer: Authorizer, method: str, url: URL, body: bytes) -> dict[str, str]:
        """Returns the headers of a call. Raises: ProviderError: nothing proves who calls."""
        try:
            async with asyncio.timeout(_AUTHORIZE_SECONDS):
                return {**self._headers, **await authorizer.headers(method, url, body)}
        except ProviderError as error:
            raise self._with_name(error) from error.__cause__
        except TimeoutError as error:
            raise self._with_name(ProviderTimeout("did not get its credentials in time")) from error

    # -- reading and writing ---------------------------------------------------------------------------

    def _encode(self, request: CompletionRequest, *, stream: bool) -> bytes:
        try:
            # a copy, which the call holds until the model answers: what orjson returns takes 4 KiB or more
            return bytes(memoryview(self._wire.encode(request, stream)))
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
                raise provider_errors.from_body(payload["error"])
            return _validate(self._wire.decode(payload))
        except ProviderError as error:
            raise self._with_reported_usage(self._with_name(error), payload) from None
        except WRONG_SHAPE as error:
            raise self._with_reported_usage(self._format_error(), payload) from error

    def _with_reported_usage(self, error: ProviderError, payload: Any) -> ProviderError:
        """Adds the tokens that the service reported for an unreadable answer to its error."""
        try:
            counted = _plausible_counts(self._wire.token_counts(payload))
        except WRONG_SHAPE:
            return error
        if counted is not None:
            attach_usage(error, self._price_usage(counted))
        return error

    def _raise_with_usage(self, error: BaseException, request: CompletionRequest, reply: Reply) -> NoReturn:
        """Raises an error of a call with the call's usage; errors of the network as `ProviderError`s.

        The usage is what the service reported, else an estimate. Requests that the service rejected or never
        received cost nothing. Cancelled calls and timeouts count as received.

        Args:
            reply: the part of the answer that has arrived.
        """
        failure: BaseException = (
            provider_errors.from_net_error(error) if isinstance(error, NetError) else error
        )
        unanswered = isinstance(failure, asyncio.CancelledError)
        if isinstance(failure, ProviderError):
            self._with_name(failure)
            unreachable = isinstance(error, NetUnreachable)
            unanswered = isinstance(failure, ProviderTimeout) and not (failure.upstream_status or unreachable)
        if unanswered or reply.content or reply.tool_calls or _plausible_counts(reply.counts):
            attach_usage(failure, self._partial_usage(request, reply))
        if failure is error:
            raise error
        raise failure from error

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
            str(reply.model)[:_MAX_MODEL_NAME],  # whatever the service calls it
        )

    def _usage(self, request: CompletionRequest, reply: Reply) -> Usage:
        counted = reply.counts
        if counted is not None and counted.input is not None and counted.output is not None:
            return self._price_usage(counted)
        return self._price_usage(_fill_counts(counted, request, _estimated_output(reply)), estimated=True)

    def _price_usage(self, counted: TokenCounts, *, estimated: bool = False) -> Usage:
        price = self._price
        inputs, outputs, cached, written, reasoning = counted
        inputs, outputs = inputs or 0, outputs or 0
        price_usd = cost(price, inputs, outputs, cached, written) if price is not None else 0.0
        return Usage(inputs, outputs, cached, price_usd, estimated, reasoning, written)

    def _partial_usage(self, request: CompletionRequest, reply: Reply) -> Usage:
        """Returns the usage of an incomplete answer: the reported tokens, else an estimate."""
        so_far, output = _plausible_counts(reply.counts), _estimated_output(reply)
        if so_far is not None and so_far.output is not None:
            if so_far.output < output:
                so_far = so_far._replace(output=None)
            elif so_far.input is not None:
                return self._price_usage(so_far)
        return self._price_usage(_fill_counts(so_far, request, output), estimated=True)

    def _status_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        if status == 401 and self._authorizer is not None:
            self._authorizer.reject()
        return self._with_name(provider_errors.from_status(status, headers, body))

    def _with_name(self, error: ProviderError) -> ProviderError:
        """Returns the error with the provider's name, and without the key."""
        error.provider = self.name
        for secret in self._secrets:
            error.quote = error.quote.replace(secret, "***")
        return error

    def _format_error(self) -> ProviderError:
        message = "sent a response in an unknown format"
        return ProviderUnavailable(message, provider=self.name, retryable=False)


def _partial_reply(reader: StreamReader) -> Reply:
    try:
        return reader.partial()
    except WRONG_SHAPE:
        return Reply()


def _estimated_output(reply: Reply) -> int:
    # calls of an incomplete answer may have parts that are not text
    calls = sum(estimate(str(c.name)) + estimate(str(c.arguments)) for c in reply.tool_calls)
    return estimate(reply.content) + calls


def _fill_counts(counted: TokenCounts | None, request: CompletionRequest, output: int) -> TokenCounts:
    """Returns the counts, with estimates for missing ones."""
    if counted is None or counted.input is None:  # without a total, its parts say nothing
        outputs = counted.output if counted is not None else None
        return TokenCounts(estimate_request(request), output if outputs is None else outputs)
    return counted if counted.output is not None else counted._replace(output=output)


def _validate(reply: Reply) -> Reply:
    """Returns the reply with whole characters; implausible counts are dropped.

    Raises:
        TypeError: an id, a name or arguments of a tool call are not text.
    """
    calls = tuple(map(_validate_call, reply.tool_calls))
    return reply._replace(
        content=join_surrogates(reply.content), tool_calls=calls, counts=_plausible_counts(reply.counts)
    )


def _validate_call(call: ToolCall) -> ToolCall:
    parts: list[Any] = [call.id, call.name, call.arguments]
    if not all(part and isinstance(part, str) for part in parts):
        raise TypeError("a tool call with a part that is not text")
    call_id, name, arguments = map(join_surrogates, parts)
    return ToolCall(call_id, name, arguments, call.kept)


def _plausible_counts(counted: TokenCounts | None) -> TokenCounts | None:
    if counted is None:
        return None
    inputs, outputs, cached, written, reasoning = map(_plausible_count, counted)
    if cached is None or written is None or (inputs is None and outputs is None):
        return None
    return TokenCounts(inputs, outputs, cached, written, min(reasoning or 0, outputs or 0))


def _plausible_count(n: Any) -> int | None:
    return int(n) if isinstance(n, _NUMBERS) and 0 <= n <= _MAX_TOKENS else None


def _url(text: str) -> URL:
    # a model's name may contain quoted characters
    return URL(text, encoded="%" in text)
