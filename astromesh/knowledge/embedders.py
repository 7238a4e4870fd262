"""Embedders: `hashing` without a model, and embedding models behind an HTTP service (`openai`, `ollama`).

`openai` is also the format of vLLM, llama.cpp, TEI, LM Studio and many services. `hashing` turns words and
parts of words into vectors, without a model and without a network. There, nearness means similar words, not
similar meaning (`semantic = False`): it finds inflections and typing errors, never a synonym. Weinberger et
al., Feature Hashing for Large Scale Multitask Learning, 2009.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, ClassVar, Literal, Self
from zlib import crc32

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import NetError, ProviderError, ProviderUnavailable
from astromesh.knowledge.base import Vector
from astromesh.knowledge.ranking import fold, words_of
from astromesh.net import provider_errors
from astromesh.net.http import Http, ServiceOptions, read_key
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.ids import with_traceparent
from astromesh.types import JsonObject

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
    cache_mb: int = Field(16, ge=0, description="Megabytes of vectors cached in memory.")


class ServiceEmbedder:
    """An `Embedder` over HTTP. A subclass is the wire format of one kind of service.

    Args:
        key: sent as a bearer token; empty for none.
        http: the shared session.
        clock: for the pauses between tries.
    """

    Options: ClassVar[type[BaseModel]] = EmbeddingOptions
    semantic = True
    #: the plugin's name
    kind: ClassVar[str]
    #: the service's own base URL, and the paths below it
    endpoint: ClassVar[str]
    path: ClassVar[str]
    ping_path: ClassVar[str]

    def __init__(self, options: EmbeddingOptions, key: str, http: Http, clock: Clock) -> None:
        self.dimensions = options.dimensions or 0
        self.fingerprint = "/".join(filter(None, (self.kind, options.model, str(options.dimensions or ""))))
        self._name = f"{options.name or self.kind}/{options.model}"
        self._options, self._http, self._clock = options, http, clock
        self._url = (options.endpoint or self.endpoint).rstrip("/")
        bearer = {"authorization": f"Bearer {key}"} if key else {}
        self._headers = {"content-type": "application/json", **bearer, **options.own_headers}
        size = {"dimensions": options.dimensions} if options.dimensions else {}
        self._fixed = {"model": options.model, **size, **self.parameters(options)}
        self._cache = VectorCache(options.cache_mb * 1024 * 1024)
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    @classmethod
    async def open(cls, options: EmbeddingOptions, deps: Deps) -> Self:
        """Raises: MissingKey: the key that the block names is not set."""
        return cls(options, read_key(options, deps.config_dir), deps.http, deps.clock)

    @staticmethod
    def parameters(options: Any) -> JsonObject:
        """Returns what each request says beside the model, its dimensions and the texts."""
        raise NotImplementedError

    @staticmethod
    def decode(payload: Any) -> Iterable[Any]:
        """Returns each text's vector as the service sent it, in order: floats, or bytes of float32."""
        raise NotImplementedError

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
        url = self._url + self.ping_path
        try:
            answer = await self._http.request("GET", url, headers=self._headers, timeout=5.0)
        except NetError as error:
            raise self._with_name(provider_errors.from_net_error(error)) from error
        if answer.status in (401, 402, 403) or answer.status >= 500:
            raise self._with_name(provider_errors.from_status(answer.status, answer.headers, b""))

    async def close(self) -> None:
        """Does nothing: the session is shared."""

    async def _embed_batch(self, texts: Sequence[str]) -> list[Vector]:
        most = self._options.max_characters
        # services reject empty texts and half surrogate pairs
        inputs = [(text[:most] or " ").encode("utf-8", "replace").decode() for text in texts]
        body = orjson.dumps({**self._fixed, "input": inputs})
        async with self._semaphore:
            answer = await self._send_with_retries(body)
        read = partial(_vectors, self.decode, answer)
        vectors = read() if len(answer) < _LARGE_ANSWER else await asyncio.to_thread(read)
        if vectors is None or len(vectors) != len(texts):
            raise self._with_name(ProviderUnavailable("did not answer with a vector for each text"))
        if len(vectors[0]) != (self.dimensions or len(vectors[0])):
            why = f"returned vectors of {len(vectors[0])} dimensions instead of {self.dimensions}"
            raise self._with_name(ProviderUnavailable(why))
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
        try:
            answer = await self._http.request(
                "POST", self._url + self.path, body=body, headers=with_traceparent(self._headers),
                timeout=self._options.timeout, resend=True,
            )  # fmt: skip
        except NetError as error:
            raise provider_errors.from_net_error(error) from error
        if answer.status != 200:
            secrets = [v.removeprefix("Bearer ") for v in self._headers.values() if len(v) > 8]
            raise provider_errors.from_status(answer.status, answer.headers, answer.body, secrets)
        return answer.body

    def _with_name(self, error: ProviderError) -> ProviderError:
        error.provider = self._name
        return error


def _vectors(decode: Callable[[Any], Iterable[Any]], body: bytes) -> list[Vector] | None:
    """The unit vectors of an answer; None if it has another shape."""
    np = import_module("numpy")  # loaded with the first answer, not at start
    try:
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are rejected below
            rows = [_row(np, one) for one in decode(orjson.loads(body))]
        matrix = np.stack(rows)
    except _WRONG_SHAPE:
        return None
    if not matrix.size or not np.isfinite(matrix).all():
        return None
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return [array("f", row.tobytes()) for row in matrix / np.where(lengths, lengths, 1.0)]


def _row(np: Any, one: Any) -> Any:
    return np.frombuffer(one, "<f4") if isinstance(one, bytes) else np.asarray(one, dtype=np.float32)


# -- the wire formats ----------------------------------------------------------------------------------------


class OllamaEmbedder(ServiceEmbedder):
    """https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embeddings"""

    kind, endpoint = "ollama", "http://localhost:11434"
    path, ping_path = "/api/embed", "/api/version"

    @staticmethod
    def parameters(options: EmbeddingOptions) -> JsonObject:
        return {"truncate": True}

    @staticmethod
    def decode(payload: Any) -> Iterable[Any]:
        rows: list[Any] = payload["embeddings"]
        return rows


OPENAI_ENDPOINT = "https://api.openai.com/v1"


class OpenAIEmbeddingOptions(EmbeddingOptions):
    usual_variable, usual_endpoints = "OPENAI_API_KEY", (OPENAI_ENDPOINT,)

    encoding: Literal["base64", "float"] = Field(
        "base64", description="The encoding of vectors; base64 is faster, and most services support it."
    )


class OpenAIEmbedder(ServiceEmbedder):
    """https://platform.openai.com/docs/api-reference/embeddings"""

    Options: ClassVar[type[BaseModel]] = OpenAIEmbeddingOptions
    kind, endpoint = "openai", OPENAI_ENDPOINT
    path, ping_path = "/embeddings", "/models"

    @staticmethod
    def parameters(options: OpenAIEmbeddingOptions) -> JsonObject:
        return {"encoding_format": options.encoding}

    @staticmethod
    def decode(payload: Any) -> Iterable[Any]:
        for one in sorted(payload["data"], key=lambda item: item["index"]):
            vector = one["embedding"]
            yield base64.b64decode(vector) if isinstance(vector, str) else vector


# -- hashing -----------------------------------------------------------------------------------------------


#: weight of a part of a word beside the word itself
_PART_WEIGHT = 0.5
_PART_LENGTH = 4
_LONGEST_WORD = 40
#: more texts than these are hashed in a thread, so that the event loop stays free
_MAX_INLINE_TEXTS = 4
_MOST_CHARACTERS = 24_000
_SMALL_WORDS = """
    a about am an and any are as at be been being but by can could did do does doing for from get go got
    had has have having he hello help her hi him his how i if in into is it its itself just know like
    may me might mine my need of on or our ours please shall she should so some tell than thank thanks
    that the their them then there these they this those to too us want was we were what when where
    which who whom whose why will with would you your yours don didn doesn isn aren wasn weren can
    couldn won wouldn ll re ve s t d m im ive id
"""
#: words that are left out; they belong to the model `hashing/1`: another list makes other vectors
_LEFT_OUT = frozenset(_SMALL_WORDS.split())


class HashingOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    dimensions: int = Field(384, ge=16, le=4096, description="Size of the vectors.")


class HashingEmbedder:
    """The plugin `hashing`: local and deterministic."""

    Options: ClassVar[type[BaseModel]] = HashingOptions
    semantic = False

    def __init__(self, dimensions: int = 384) -> None:
        self.dimensions = dimensions
        self.fingerprint = f"hashing/1/{dimensions}"

    @classmethod
    async def open(cls, options: HashingOptions, deps: Deps) -> Self:
        return cls(options.dimensions)

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        if len(texts) <= _MAX_INLINE_TEXTS:
            return [_vector(text, self.dimensions) for text in texts]
        return await asyncio.to_thread(lambda: [_vector(text, self.dimensions) for text in texts])

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Does nothing: no resource is open."""


def _vector(text: str, dimensions: int) -> Vector:
    counted = Counter(_plain_words(text[:_MOST_CHARACTERS]))
    sums = [0.0] * dimensions
    for word, count in counted.items():
        factor = 1.0 + math.log(count)
        for place, weight in _features(word):
            sums[place % dimensions] += weight * factor
    length = math.sqrt(math.fsum(value * value for value in sums))
    return array("f", [value / length for value in sums] if length else sums)


def _plain_words(text: str) -> list[str]:
    """The words in lower case without accents and stop words; a text of stop words only keeps them."""
    found = [word[:_LONGEST_WORD] for word in words_of(fold(text))]
    return [word for word in found if word not in _LEFT_OUT] or found


@lru_cache(maxsize=20_000)
def _features(word: str) -> tuple[tuple[int, float], ...]:
    """Place and signed weight of a word and of its parts; signs let collisions cancel out."""
    padded = f"<{word}>"
    parts = {padded[n : n + _PART_LENGTH] for n in range(len(padded) - _PART_LENGTH + 1)} - {padded}
    return (_feature(word, 1.0), *(_feature("#" + part, _PART_WEIGHT) for part in sorted(parts)))


def _feature(name: str, weight: float) -> tuple[int, float]:
    value = crc32(name.encode("utf-8", "replace"))
    return value >> 1, weight if value & 1 else -weight
