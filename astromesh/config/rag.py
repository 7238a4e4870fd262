"""rag/NAME.rag.yaml, kind RAGPipeline: from documents to passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from astromesh.config.agent import RoleModel
from astromesh.config.providers import Embeddings
from astromesh.config.records import Block, Count, Manifest, Metadata, NamesPlugin, Record, one_or_list

_Glob = Annotated[str, Field(min_length=1)]
#: distinguished before validation, so that a fault is reported once
Globs = Annotated[
    Annotated[_Glob, Tag("one")] | Annotated[tuple[_Glob, ...], Tag("list")], Discriminator(one_or_list)
]


class Source(Record):
    """Where documents come from."""

    type: Literal["folder"] = Field("folder", description="A folder of files.")
    path: str = Field(min_length=1, description="The folder, relative to the folder of this file.")
    glob: Globs = Field("**/*.md", description="Which files of the folder: a pattern, or a list of them.")


class Chunking(Block):
    """Other keys belong to the chunker."""

    strategy: Annotated[str, NamesPlugin("chunkers")] = Field(
        "markdown", min_length=1, description="Name of the chunker."
    )


class VectorStore(Block):
    """Other keys belong to the store."""

    backend: Annotated[str, NamesPlugin("vector_stores")] = Field(
        "sqlite", min_length=1, description="Name of the store."
    )


class Reranker(RoleModel):
    """The models that rank the found passages; written like a role of an agent's models."""

    candidates: Annotated[int, Field(ge=2, le=100)] = Field(
        20, description="How many passages the model ranks."
    )


class Retrieval(Record):
    mode: Literal["lexical", "vector", "hybrid"] | None = Field(
        None, description="How passages are found; absent: hybrid with embeddings, else lexical."
    )
    top_k: Count = Field(5, description="How many passages a query returns by default.")
    min_score: float = Field(0.0, ge=0, le=1, description="Passages with a lower score are left out.")
    reranker: Reranker | None = Field(
        None, description="A model that ranks the found passages; absent: none."
    )


class RAGSpec(Record):
    sources: tuple[Source, ...] = Field((), description="Read at start; HTTP may add more.")
    chunking: Chunking = Field(default_factory=Chunking)
    embeddings: Embeddings | None = Field(None, description="Absent: lexical search only.")
    store: VectorStore = Field(default_factory=VectorStore)
    retrieval: Retrieval = Retrieval.empty()
    shared: bool = Field(False, description="Every tenant reads the documents that `owner` has sent.")
    owner: str = Field("", description="With `shared`: the tenant whose documents every tenant reads.")

    @property
    def mode(self) -> Literal["lexical", "vector", "hybrid"]:
        """How passages are found."""
        return self.retrieval.mode or ("lexical" if self.embeddings is None else "hybrid")


class RAGManifest(Manifest):
    kind: Literal["RAGPipeline"]
    metadata: Metadata = Metadata.empty()
    spec: RAGSpec = Field(default_factory=RAGSpec)

    @property
    def name(self) -> str:
        """metadata.name, else NAME of the file NAME.rag.yaml."""
        return self.metadata.name or self.file.name.removesuffix(".rag.yaml")

    def folder(self, source: Source) -> Path:
        """The folder of a source, absolute or relative to the working directory."""
        return self.file.parent / source.path
