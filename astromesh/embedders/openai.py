"""Embeddings by OpenAI's format, which vLLM, llama.cpp, TEI, LM Studio and many services speak, too."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import orjson
from pydantic import BaseModel, Field

from astromesh.abc.deps import Deps
from astromesh.embedders.service import EmbeddingOptions, EmbeddingService, ServiceEmbedder

ENDPOINT = "https://api.openai.com/v1"


class OpenAIEmbeddingOptions(EmbeddingOptions):
    usual_variable, usual_endpoints = "OPENAI_API_KEY", (ENDPOINT,)

    encoding: Literal["base64", "float"] = Field(
        "base64", description="How vectors are asked for; base64 is read faster, and few services lack it."
    )


class OpenAIEmbedder:
    """The plugin `openai`."""

    Options: ClassVar[type[BaseModel]] = OpenAIEmbeddingOptions

    @classmethod
    async def open(cls, options: OpenAIEmbeddingOptions, deps: Deps) -> ServiceEmbedder:
        """Raises: MissingKey, ConfigError."""
        key = options.key(deps.config_dir)
        service = EmbeddingService.of("openai", options, ENDPOINT, key)
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
