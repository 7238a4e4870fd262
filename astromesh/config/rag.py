"""rag/NAME.rag.yaml, kind RAGPipeline: from documents to passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag

from astromesh.config.agent import RoleModel
from astromesh.config.providers import Embeddings
from astromesh.config.records import (
    Block,
    Count,
    Duration,
    Manifest,
    Metadata,
    NamesPlugin,
    Record,
    one_or_list,
)
from astromesh.config.runtime import http_url

_Glob = Annotated[str, Field(min_length=1)]
#: distinguished before validation, so that a fault is reported once
Globs = Annotated[
    Annotated[_Glob, Tag("one")] | Annotated[tuple[_Glob, ...], Tag("list")], Discriminator(one_or_list)
]


def _page_url(text: str) -> str:
    """Raises: ValueError: it is no URL of a page, or names a user, who would be shown with every passage."""
    if not text:
        return text
    url = http_url(text)
    parts = urlsplit(url)
    if parts.username is not None or parts.fragment:
        raise ValueError("must have no user and no fragment (#…)")
    return url


PageUrl = Annotated[str, AfterValidator(_page_url)]


class Source(Record):
    """Where documents come from: a folder, or a page of the web."""

    type: Literal["folder", "http"] | None = Field(
        None, description="A folder of files, or a page of the web; absent: as `path` or `url` says."
    )
    path: str = Field("", description="The folder, relative to the folder of this file.")
    glob: Globs = Field("**/*.md", description="Which files of the folder: a pattern, or a list of them.")
    url: PageUrl = Field("", description="The page instead of a folder.")
    every: Duration = Field(
        3600.0, description="Seconds after which the page is asked for again; also `15m`, `1h`, `1d`."
    )


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


class CrossEncoder(Record):
    """A model in this process that reads question and passage together."""

    model: str = Field(
        min_length=1,
        description="Folder with model.onnx or onnx/model.onnx and tokenizer.json, relative to the "
        "configuration folder.",
    )
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
    cross_encoder: CrossEncoder | None = Field(
        None, description="A cross-encoder on disk that ranks the found passages; absent: none."
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

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the sources, absolute or relative to the working directory."""
        return tuple(self.folder(source) for source in self.spec.sources if source.path)

    def folder(self, source: Source) -> Path:
        """The folder of a source, absolute or relative to the working directory."""
        return self.file.parent / source.path
