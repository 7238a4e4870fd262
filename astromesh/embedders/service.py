"""An embedding model behind an HTTP service: batches, the cache, tries, errors; a wire says the rest."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from yarl import URL

from astromesh.abc.clock import Clock
from astromesh.embedders.cache import Vector, VectorCache, content_key
from astromesh.errors import ConfigError, MissingKey, NetError, ProviderError, ProviderUnavailable
from astromesh.net import faults
from astromesh.net.http import Http

TRIES = 3
#: seconds before the second try; doubled for each further one
FIRST_PAUSE = 0.25
#: a service that asks for more than this is left alone
LONGEST_PAUSE = 10.0
#: requests under way at once, for one call of `embed`
AT_ONCE = 4
#: an answer beyond this is read in a thread: the event loop stays free
_LARGE = 256 * 1024
_WRONG_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class EmbeddingOptions(BaseModel):
    """Options that all embedding services share."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    #: as those of the options of models
    usual_variable: ClassVar[str] = ""
    usual_endpoints: ClassVar[tuple[str, ...]] = ()

    name: str = Field("", description="Name in providers.yaml, shown in errors; the type if empty.")
    model: str = Field(min_length=1, description="The embedding model.")
    endpoint: str = Field("", description="Base URL; the service's own if empty. Trusted, loopback included.")
    api_key_env: str = Field("", description="Environment variable that holds the key.")
    api_key_file: str = Field(
        "", description="File that holds the key, relative to the configuration folder."
    )
    api_key: SecretStr | None = Field(None, description="The key itself; better kept out of files.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Further headers, e.g. of a gateway."
    )
    timeout: float = Field(
        10.0, gt=0, description="Seconds for one request; it is tried three times at most."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Size of the vectors, asked of models that can shorten them."
    )
    batch_size: int = Field(128, ge=1, le=2048, description="Texts in one request.")
    max_characters: int = Field(24_000, ge=100, description="Longer texts are cut: models have a limit.")
    cache_mb: int = Field(16, ge=0, description="Megabytes of vectors kept in memory, by content.")

    def key(self, config_dir: Path) -> str:
        """The key; empty where none is asked for.

        Raises:
            MissingKey: the named variable or file holds none.
        """
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        if self.api_key_file:
            try:
                return (config_dir / self.api_key_file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise MissingKey(f"The key file {self.api_key_file} cannot be read.") from error
        official = self.endpoint.rstrip("/") in ("", *self.usual_endpoints)
        variable = self.api_key_env or (self.usual_variable if official else "")
        key = os.environ.get(variable, "").strip() if variable else ""
        if variable and not key:
            raise MissingKey(f"No key: the environment variable {variable} is not set or empty.")
        return key


class EmbeddingWire(Protocol):
    """One wire format, without I/O."""

    #: below the endpoint
    path: str
    ping_path: str

    def encode(self, texts: Sequence[str]) -> bytes: ...

    def decode(self, payload: Any) -> Iterable[Any]:
        """Each text's vector as the service wrote it, in their order: floats, or bytes of float32."""


@dataclass(frozen=True, slots=True)
class EmbeddingService:
    """Where a model is. Args: kind: the plugin's name; headers: the key's among them."""

    kind: str
    options: EmbeddingOptions
    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, options: EmbeddingOptions, endpoint: str, key: str) -> EmbeddingService:
        """Raises: ConfigError: the endpoint is no URL."""
        url = options.endpoint or endpoint
        if URL(url).scheme not in ("http", "https") or not URL(url).host:
            raise ConfigError(f"The endpoint of the embedder {options.name or kind!r} is no http(s) URL.")
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        own = {name: value.get_secret_value() for name, value in options.headers.items()}
        return cls(kind, options, url.rstrip("/"), {**headers, **own})


class ServiceEmbedder:
    """An `Embedder` over HTTP.

    Args:
        wire: the format that the service speaks.
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
        self._seats = asyncio.Semaphore(AT_ONCE)

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        keys = [content_key(text) for text in texts]
        found = {key: vector for key in keys if (vector := self._cache.get(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        size = self._options.batch_size
        batches = [list(missing)[n : n + size] for n in range(0, len(missing), size)]
        answers = await asyncio.gather(*(self._batch([missing[k] for k in batch]) for batch in batches))
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
            raise self._named(faults.from_net(error)) from error
        if answer.status in (401, 402, 403) or answer.status >= 500:
            raise self._named(faults.from_status(answer.status, answer.headers, b""))

    async def close(self) -> None:
        """Nothing to do: the session is shared."""

    # -- inside --------------------------------------------------------------------------------------------

    async def _batch(self, texts: Sequence[str]) -> list[Vector]:
        most = self._options.max_characters
        body = self._wire.encode([text[:most] or " " for text in texts])  # services refuse empty texts
        async with self._seats:
            answer = await self._tried(body)
        read = _read if len(answer) < _LARGE else _read_aside
        vectors = await read(self._wire.decode, answer)
        if vectors is None or len(vectors) != len(texts):
            raise self._named(ProviderUnavailable("answered something that is not a vector for each text"))
        if len(vectors[0]) != (self.dimensions or len(vectors[0])):
            raise self._named(
                ProviderUnavailable(
                    f"answered vectors of {len(vectors[0])} dimensions instead of {self.dimensions}"
                )
            )
        self.dimensions = len(vectors[0])
        return vectors

    async def _tried(self, body: bytes) -> bytes:
        pause = FIRST_PAUSE
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self._sent(body)
            except ProviderError as error:
                asked = error.retry_after
                if not (left and error.retryable and asked <= LONGEST_PAUSE):
                    raise self._named(error) from error.__cause__
            await self._clock.sleep(max(pause, asked))
            pause *= 2
        raise AssertionError("a loop that returns or raises")

    async def _sent(self, body: bytes) -> bytes:
        url = self._service.endpoint + self._wire.path
        try:
            answer = await self._http.request(
                "POST", url, body=body, headers=self._service.headers, timeout=self._options.timeout,
                resend=True,
            )  # fmt: skip
        except NetError as error:
            raise faults.from_net(error) from error
        if answer.status != 200:
            secrets = [v.removeprefix("Bearer ") for v in self._service.headers.values() if len(v) > 8]
            raise faults.from_status(answer.status, answer.headers, answer.body, secrets)
        return answer.body

    def _named(self, error: ProviderError) -> ProviderError:
        error.provider = self._name
        return error


async def _read(decode: Callable[[Any], Iterable[Any]], body: bytes) -> list[Vector] | None:
    return _vectors(decode, body)


async def _read_aside(decode: Callable[[Any], Iterable[Any]], body: bytes) -> list[Vector] | None:
    return await asyncio.to_thread(_vectors, decode, body)


def _vectors(decode: Callable[[Any], Iterable[Any]], body: bytes) -> list[Vector] | None:
    """Unit vectors; None where the answer is of another shape."""
    try:
        with np.errstate(over="ignore"):  # beyond float32 is infinite, which is refused below
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
