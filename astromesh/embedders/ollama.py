"""Embeddings by Ollama's own format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import orjson
from pydantic import BaseModel

from astromesh.abc.deps import Deps
from astromesh.embedders.service import EmbeddingOptions, EmbeddingService, ServiceEmbedder

ENDPOINT = "http://localhost:11434"


class OllamaEmbedder:
    """The plugin `ollama`."""

    Options: ClassVar[type[BaseModel]] = EmbeddingOptions

    @classmethod
    async def open(cls, options: EmbeddingOptions, deps: Deps) -> ServiceEmbedder:
        """Raises: MissingKey, ConfigError."""
        service = EmbeddingService.of("ollama", options, ENDPOINT, options.key(deps.config_dir))
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
