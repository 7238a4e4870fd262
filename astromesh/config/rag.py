"""rag/NAME.rag.yaml, kind RAGPipeline: from documents to passages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from astromesh.config.fields import Block, Count, Record
from astromesh.config.head import Manifest, Metadata
from astromesh.config.models import Embeddings


class Source(Record):
    """Where documents come from."""

    type: Literal["folder"] = Field("folder", description="A folder of files.")
    path: str = Field(min_length=1, description="The folder, relative to the folder of this file.")
    glob: str = Field("**/*.md", min_length=1, description="Which files of the folder.")


class Chunking(Block):
    """Other keys belong to the chunker."""

    strategy: str = Field("markdown", min_length=1, description="Name of the chunker.")


class VectorStore(Block):
    """Other keys belong to the store."""

    backend: str = Field("sqlite", min_length=1, description="Name of the store.")


class Retrieval(Record):
    mode: Literal["lexical", "vector", "hybrid"] = Field("lexical", description="How passages are found.")
    top_k: Count = Field(5, description="How many passages a query answers, unless it says otherwise.")


class RAGSpec(Record):
    sources: tuple[Source, ...] = Field((), description="Read at start; more come in over HTTP.")
    chunking: Chunking = Field(default_factory=Chunking)
    embeddings: Embeddings | None = Field(None, description="Absent: lexical search only.")
    store: VectorStore = Field(default_factory=VectorStore)
    retrieval: Retrieval = Retrieval()


class RAGManifest(Manifest):
    kind: Literal["RAGPipeline"]
    metadata: Metadata = Metadata()
    spec: RAGSpec = Field(default_factory=RAGSpec)

    @property
    def name(self) -> str:
        """metadata.name, else NAME of the file NAME.rag.yaml."""
        return self.metadata.name or self.file.name.removesuffix(".rag.yaml")

    def folder(self, source: Source) -> Path:
        """The folder of a source, absolute or relative to the working directory."""
        return self.file.parent / source.path
