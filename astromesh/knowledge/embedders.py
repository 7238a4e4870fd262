"""Embedding models behind an HTTP service: batches, the cache, retries, errors, and the wire formats.

`openai` is also the format of vLLM, llama.cpp, TEI, LM Studio and many services.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import orjson
from pydantic import BaseModel, Field

from astromesh.errors import NetError, ProviderError, ProviderUnavailable
from astromesh.knowledge.base import Vector
from astromesh.net import provider_errors
from astromesh.net.http import Http
from astromesh.net.service_options import ServiceOptions, read_key
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock

#: bytes of a vector's object and its key, beside its floats
_OVERHEAD = 200


def content_key(text: str) -> bytes:
    """A digest of a text, 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


class VectorCache:
    """Vectors by the content of their texts; the least recently used is dropped. Args: limit: bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._vectors: OrderedDict[bytes, Vector] = OrderedDict()

    def get(self, key: bytes) -> Vector | None:
        found = self._vectors.get(key)
        if found is not None:
            self._vectors.move_to_end(key)
        return found

    def put(self, key: bytes, vector: Vector) -> None:
        if key in self._vectors:
            return
        self._vectors[key] = vector
        self._size += _weight(vector)
        while self._size > self._limit and self._vectors:
            _, dropped = self._vectors.popitem(last=False)
            self._size -= _weight(dropped)


def _weight(vector: Vector) -> int:
    return len(vector) * vector.itemsize + _OVERHEAD


# -- the service ---------------------------------------------------------------------------------------------

TRIES = 3
#: seconds before the second try; doubled for each further try
FIRST_PAUSE = 0.25
#: no retry if the service asks for a longer pause, in seconds
LONGEST_PAUSE = 10.0
#: concurrent requests of one embedder
MAX_CONCURRENT_REQUESTS = 4
#: bytes; a longer answer is read in a thread, so that the event loop stays free
_LARGE_ANSWER = 256 * 1024
_WRONG_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class EmbeddingOptions(ServiceOptions):
    """Options that all embedding services share."""

    model: str = Field(min_length=1, description="The embedding model.")
    timeout: float = Field(
        10.0, gt=0, description="Seconds for one request, which is tried at most three times."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Size of the vectors, for models that can shorten them."
    )
    batch_size: int = Field(128, ge=1, le=2048, description="Texts in one request.")
    max_characters: int = Field(24_000, ge=100, description="Longer texts are truncated to this length.")
    cache_mb: int = Field(16, ge=0, description="Megabytes of vectors kept in memory, by content.")


class EmbeddingWire(Protocol):
    """One wire format, without I/O."""

    #: below the endpoint
    path: str
    ping_path: str

    def encode(self, texts: Sequence[str]) -> bytes: ...

    def decode(self, payload: Any) -> Iterable[Any]:
        """Each text's vector as the service sent it, in order: floats, or bytes of float32."""


@dataclass(frozen=True, slots=True)
class EmbeddingService:
    """The endpoint of a model. Args: kind: the plugin's name; headers: with the key."""

    kind: str
    options: EmbeddingOptions
    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, options: EmbeddingOptions, endpoint: str, key: str) -> EmbeddingService:
        """The service of a block. Args: endpoint: the service's own base URL, the default of the block."""
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        url = (options.endpoint or endpoint).rstrip("/")
        return cls(kind, options, url, {**headers, **options.own_headers})


class ServiceEmbedder:
    """An `Embedder` over HTTP.

    Args:
        wire: the wire format of the service.
        http: the shared session.
        clock: for the pauses between tries.
    """

    semantic = True

    def __init__(self, service: EmbeddingService, wire: EmbeddingWire, http: Http, clock: Clock) -> None:
        options = service.options
        self.dimensions = options.dimensions or 0
        self.fingerprint = "/".join(
            filter(None, (service.kind, options.model, str(options.dimensions or "")))
        )
        self._name = f"{options.name or service.kind}/{options.model}"
        self._service, self._options, self._wire, self._http, self._clock = (
            service, options, wire, http, clock,
        )  # fmt: skip
        self._cache = VectorCache(options.cache_mb * 1024 * 1024)
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        keys = [content_key(text) for text in texts]
        found = {key: vector for key in keys if (vector := self._cache.get(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        size = self._options.batch_size
        batches = [list(missing)[n : n + size] for n in range(0, len(missing), size)]
        answers = await asyncio.gather(*(self._embed_batch([missing[k] for k in batch]) for batch in batches))
        for batch, vectors in zip(batches, answers, strict=True):
            for key, vector in zip(batch, vectors, strict=True):
                found[key] = vector
                self._cache.put(key, vector)
        return [found[key] for key in keys]

    async def ping(self) -> None:
        url = self._service.endpoint + self._wire.ping_path
        try:
            answer = await self._http.request("GET", url, headers=self._service.headers, timeout=5.0)
        except NetError as error:
            raise self._with_name(provider_errors.from_net_error(error)) from error
        if answer.status in (401, 402, 403) or answer.status >= 500:
            raise self._with_name(provider_errors.from_status(answer.status, answer.headers, b""))

    async def close(self) -> None:
        """Does nothing: the session is shared."""

    async def _embed_batch(self, texts: Sequence[str]) -> list[Vector]:
        most = self._options.max_characters
        body = self._wire.encode([text[:most] or " " for text in texts])  # services reject empty texts
        async with self._semaphore:
            answer = await self._send_with_retries(body)
        read = _read if len(answer) < _LARGE_ANSWER else _read_in_thread
        vectors = await read(self._wire.decode, answer)
        if vectors is None or len(vectors) != len(texts):
            raise self._with_name(ProviderUnavailable("did not answer with a vector for each text"))
        if len(vectors[0]) != (self.dimensions or len(vectors[0])):
            raise self._with_name(
                ProviderUnavailable(
                    f"answered vectors of {len(vectors[0])} dimensions instead of {self.dimensions}"
                )
            )
        self.dimensions = len(vectors[0])
        return vectors

    async def _send_with_retries(self, body: bytes) -> bytes:
        pause = FIRST_PAUSE
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self._send(body)
            except ProviderError as error:
                requested = error.retry_after
                if not (left and error.retryable and requested <= LONGEST_PAUSE):
                    raise self._with_name(error) from error.__cause__
            await self._clock.sleep(max(pause, requested))
            pause *= 2
        raise AssertionError("a loop that returns or raises")

    async def _send(self, body: bytes) -> bytes:
        url = self._service.endpoint + self._wire.path
        try:
            answer = await self._http.request(
                "POST", url, body=body, headers=self._service.headers, timeout=self._options.timeout,
                resend=True,
            )  # fmt: skip
        except NetError as error:
            raise provider_errors.from_net_error(error) from error
        if answer.status != 200:
            secrets = [v.removeprefix("Bearer ") for v in self._service.headers.values() if len(v) > 8]
            raise provider_errors.from_status(answer.status, answer.headers, answer.body, secrets)
        return answer.body

    def _with_name(self, error: ProviderError) -> ProviderError:
        error.provider = self._name
        return error


async def _read(decode: Callable[[Any], Iterable[Any]], body: bytes) -> list[Vector] | None:
    return _vectors(decode, body)


async def _read_in_thread(decode: Callable[[Any], Iterable[Any]], body: bytes) -> list[Vector] | None:
    return await asyncio.to_thread(_vectors, decode, body)


def _vectors(decode: Callable[[Any], Iterable[Any]], body: bytes) -> list[Vector] | None:
    """The unit vectors of an answer; None if it has another shape."""
    try:
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are rejected below
            rows = [_row(one) for one in decode(orjson.loads(body))]
        matrix = np.stack(rows)
    except _WRONG_SHAPE:
        return None
    if not matrix.size or not np.isfinite(matrix).all():
        return None
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return [array("f", row.tobytes()) for row in matrix / np.where(lengths, lengths, 1.0)]


def _row(one: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(one, "<f4") if isinstance(one, bytes) else np.asarray(one, dtype=np.float32)


# -- ollama --------------------------------------------------------------------------------------------------

OLLAMA_ENDPOINT = "http://localhost:11434"


class OllamaEmbedder:
    """The plugin `ollama`."""

    Options: ClassVar[type[BaseModel]] = EmbeddingOptions

    @classmethod
    async def open(cls, options: EmbeddingOptions, deps: Deps) -> ServiceEmbedder:
        """Raises: MissingKey: the key that the block names is not set."""
        service = EmbeddingService.of("ollama", options, OLLAMA_ENDPOINT, read_key(options, deps.config_dir))
        return ServiceEmbedder(service, OllamaEmbeddingWire(options), deps.http, deps.clock)


class OllamaEmbeddingWire:
    """https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embeddings"""

    path = "/api/embed"
    ping_path = "/api/version"

    def __init__(self, options: EmbeddingOptions) -> None:
        self._fixed: dict[str, Any] = {"model": options.model, "truncate": True}
        if options.dimensions:
            self._fixed["dimensions"] = options.dimensions

    def encode(self, texts: Sequence[str]) -> bytes:
        return orjson.dumps(
            {**self._fixed, "input": [text.encode("utf-8", "replace").decode() for text in texts]}
        )

    def decode(self, payload: Any) -> Iterable[Any]:
        rows: list[Any] = payload["embeddings"]
        return rows


# -- openai --------------------------------------------------------------------------------------------------

OPENAI_ENDPOINT = "https://api.openai.com/v1"


class OpenAIEmbeddingOptions(EmbeddingOptions):
    usual_variable, usual_endpoints = "OPENAI_API_KEY", (OPENAI_ENDPOINT,)

    encoding: Literal["base64", "float"] = Field(
        "base64", description="The encoding of vectors; base64 is faster, and most services support it."
    )


class OpenAIEmbedder:
    """The plugin `openai`."""

    Options: ClassVar[type[BaseModel]] = OpenAIEmbeddingOptions

    @classmethod
    async def open(cls, options: OpenAIEmbeddingOptions, deps: Deps) -> ServiceEmbedder:
        """Raises: MissingKey: the key that the block names is not set."""
        key = read_key(options, deps.config_dir)
        service = EmbeddingService.of("openai", options, OPENAI_ENDPOINT, key)
        return ServiceEmbedder(service, OpenAIEmbeddingWire(options), deps.http, deps.clock)


class OpenAIEmbeddingWire:
    """https://platform.openai.com/docs/api-reference/embeddings"""

    path = "/embeddings"
    ping_path = "/models"

    def __init__(self, options: OpenAIEmbeddingOptions) -> None:
        self._fixed: dict[str, Any] = {"model": options.model, "encoding_format": options.encoding}
        if options.dimensions:
            self._fixed["dimensions"] = options.dimensions

    def encode(self, texts: Sequence[str]) -> bytes:
        return orjson.dumps(
            {**self._fixed, "input": [text.encode("utf-8", "replace").decode() for text in texts]}
        )

    def decode(self, payload: Any) -> Iterable[Any]:
        for one in sorted(payload["data"], key=lambda item: item["index"]):
            vector = one["embedding"]
            yield base64.b64decode(vector) if isinstance(vector, str) else vector
