"""A RAG manifest becomes a pipeline: its chunker, its store, its folders, all by the names that YAML says."""

from __future__ import annotations

from typing import Any

from astromesh.abc.deps import Deps
from astromesh.abc.rag import Knowledge
from astromesh.config.rag import RAGManifest
from astromesh.plugins import Plugins


async def open_knowledge(manifest: RAGManifest, plugins: Plugins, deps: Deps) -> Knowledge:
    """Opens a pipeline and takes in what its folders hold.

    Raises:
        ConfigError: a plugin is unknown or its options are wrong.
        StoreError: the index cannot be opened or written.
    """
    spec = manifest.spec

    async def opened(group: str, name: str, options: Any) -> Any:
        plugin = plugins.load(group, name)
        return await plugin.open(plugin.Options() if options is None else options, deps)

    chunker = await opened("chunkers", spec.chunking.strategy, spec.chunking.options)
    stores = await opened("vector_stores", spec.store.backend, spec.store.options)
    deps.resources.on_close(stores.close)
    pipeline: Knowledge = plugins.load("pipelines", "rag")(
        manifest.name,
        await stores.collection(manifest.name),
        chunker,
        sources=[(manifest.folder(source).resolve(), source.glob) for source in spec.sources],
        top_k=spec.retrieval.top_k,
        clock=deps.clock,
    )
    await pipeline.refresh()
    return pipeline
