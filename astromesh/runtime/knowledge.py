"""Opens the embedder and the RAG pipeline that a manifest describes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog

from astromesh.config.agent import RoleModel
from astromesh.config.providers import Embeddings, ModelBlock
from astromesh.config.rag import RAGManifest
from astromesh.errors import ProviderError, StoreUnavailable
from astromesh.knowledge.base import (
    ChunkStores,
    DocumentReader,
    Embedder,
    KnowledgePipeline,
    ProgressCallback,
)
from astromesh.plugins import Deps, Plugins
from astromesh.providers.base import ModelPort

# The embedder of an `embeddings` block: opened once for all blocks that say the same.

log = structlog.get_logger("astromesh.bootstrap")


async def open_embedder(spec: Embeddings | None, plugins: Plugins, deps: Deps) -> Embedder | None:
    """The embedder of a block; None where there is none, or where its key is not set: then words must do.

    Raises:
        ConfigError: the plugin or its options are wrong.
    """
    if spec is None:
        return None
    block = spec.block
    if block.skipped:
        log.warning("embedder_skipped", embedder=block.name, reason=block.skipped)
        return None
    key = ("embedder", block.plugin, repr(block.options), _api_key(block.options))
    embedder: Embedder = await deps.resources.shared(key, lambda: _managed_embedder(block, plugins, deps))
    return embedder


@asynccontextmanager
async def _managed_embedder(block: ModelBlock, plugins: Plugins, deps: Deps) -> AsyncIterator[Embedder]:
    embedder: Embedder = await plugins.load("embedders", block.plugin).open(block.options, deps)
    try:
        yield embedder
    finally:
        await embedder.close()


def _api_key(options: Any) -> str:
    """Two keys are two embedders; their texts both print as stars."""
    key = getattr(options, "api_key", None)
    return key.get_secret_value() if key is not None else ""


#: opens the models of a reranker; None where none of them can be used
OpenModel = Callable[[str, RoleModel], Awaitable[ModelPort | None]]


async def open_rag_pipeline(
    manifest: RAGManifest, plugins: Plugins, deps: Deps, open_model: OpenModel | None = None
) -> KnowledgePipeline:
    """Opens a pipeline, and takes nothing in yet.

    Raises:
        ConfigError: a plugin is unknown or its options are wrong, or `mode: vector` has no embedder.
        StoreError: the index cannot be opened.
    """
    spec = manifest.spec
    embedder = None
    if spec.mode != "lexical":
        embedder = await open_embedder(spec.embeddings, plugins, deps)
    deps = replace(deps, embedder=embedder)

    async def opened(group: str, name: str, options: Any) -> Any:
        plugin = plugins.load(group, name)
        return await plugin.open(plugin.Options() if options is None else options, deps)

    chunker = await opened("chunkers", spec.chunking.strategy, spec.chunking.options)
    stores: ChunkStores = await opened("vector_stores", spec.store.backend, spec.store.options)
    deps.resources.on_close(stores.close)
    pipeline: KnowledgePipeline = plugins.load("pipelines", "rag")(
        manifest.name,
        await stores.collection(manifest.name),
        chunker,
        sources=[(manifest.folder(source).resolve(), source.glob) for source in spec.sources],
        readers=_readers(plugins),
        embedder=embedder,
        mode="lexical" if spec.mode == "hybrid" and embedder is None else spec.mode,
        top_k=spec.retrieval.top_k,
        clock=deps.clock,
    )
    deps.resources.on_close(pipeline.close)
    return await _with_reranker(pipeline, manifest, plugins, open_model)


async def refresh_pipeline(pipeline: KnowledgePipeline, progress: ProgressCallback | None = None) -> None:
    """What the folders hold. Where a service is away, the pipeline answers from what it has, and tries again.

    Raises:
        StoreError: the index cannot be written.
        MissingExtra: a file needs a reader that is not installed.
    """
    try:
        await pipeline.refresh(progress)
    except (ProviderError, StoreUnavailable) as error:
        log.warning("knowledge_not_refreshed", pipeline=pipeline.name, error=str(error))


async def _with_reranker(
    pipeline: KnowledgePipeline, manifest: RAGManifest, plugins: Plugins, open_model: OpenModel | None
) -> KnowledgePipeline:
    retrieval = manifest.spec.retrieval
    if retrieval.reranker is None or open_model is None:
        return pipeline
    model = await open_model(manifest.name, retrieval.reranker)
    if model is None:
        return pipeline
    reranked: KnowledgePipeline = plugins.load("pipelines", "reranked")(
        pipeline, model, candidates=retrieval.reranker.candidates, top_k=retrieval.top_k
    )
    return reranked


def _readers(plugins: Plugins) -> Callable[[str], DocumentReader]:
    """One reader of each kind, made when the first such file is met."""
    made: dict[str, DocumentReader] = {}

    def reader(kind: str) -> DocumentReader:
        if kind not in made:
            made[kind] = plugins.load("readers", kind)()
        return made[kind]

    return reader
