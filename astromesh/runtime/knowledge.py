"""A RAG manifest becomes a pipeline: its chunker, its store, its folders, all by the names that YAML says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import structlog

from astromesh.abc.deps import Deps
from astromesh.abc.provider import ModelPort
from astromesh.abc.rag import ChunkStores, Knowledge, Progress, Reader
from astromesh.config.agent import RoleModel
from astromesh.config.rag import RAGManifest
from astromesh.errors import ProviderError, StoreUnavailable
from astromesh.plugins import Plugins
from astromesh.runtime.embedders import open_embedder

log = structlog.get_logger("astromesh.bootstrap")

#: opens the models of a reranker; None where none of them can be used
OpenModel = Callable[[str, RoleModel], Awaitable[ModelPort | None]]


async def open_knowledge(
    manifest: RAGManifest, plugins: Plugins, deps: Deps, open_model: OpenModel | None = None
) -> Knowledge:
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
    pipeline: Knowledge = plugins.load("pipelines", "rag")(
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
    return await _reranked(pipeline, manifest, plugins, open_model)


async def take_in(pipeline: Knowledge, progress: Progress | None = None) -> None:
    """What the folders hold. Where a service is away, the pipeline answers from what it has, and tries again.

    Raises:
        StoreError: the index cannot be written.
        MissingExtra: a file needs a reader that is not installed.
    """
    try:
        await pipeline.refresh(progress)
    except (ProviderError, StoreUnavailable) as error:
        log.warning("knowledge_not_refreshed", pipeline=pipeline.name, error=str(error))


async def _reranked(
    pipeline: Knowledge, manifest: RAGManifest, plugins: Plugins, open_model: OpenModel | None
) -> Knowledge:
    retrieval = manifest.spec.retrieval
    if retrieval.reranker is None or open_model is None:
        return pipeline
    model = await open_model(manifest.name, retrieval.reranker)
    if model is None:
        return pipeline
    reranked: Knowledge = plugins.load("pipelines", "reranked")(
        pipeline, model, candidates=retrieval.reranker.candidates, top_k=retrieval.top_k
    )
    return reranked


def _readers(plugins: Plugins) -> Callable[[str], Reader]:
    """One reader of each kind, made when the first such file is met."""
    made: dict[str, Reader] = {}

    def reader(kind: str) -> Reader:
        if kind not in made:
            made[kind] = plugins.load("readers", kind)()
        return made[kind]

    return reader
