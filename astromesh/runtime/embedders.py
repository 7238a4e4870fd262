"""The embedder of an `embeddings` block: opened once for all blocks that say the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from astromesh.abc.deps import Deps
from astromesh.abc.rag import Embedder
from astromesh.config.models import Embeddings, ModelBlock
from astromesh.plugins import Plugins

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
    key = ("embedder", block.plugin, repr(block.options), _secret(block.options))
    embedder: Embedder = await deps.resources.shared(key, lambda: _opened(block, plugins, deps))
    return embedder


@asynccontextmanager
async def _opened(block: ModelBlock, plugins: Plugins, deps: Deps) -> AsyncIterator[Embedder]:
    embedder: Embedder = await plugins.load("embedders", block.plugin).open(block.options, deps)
    try:
        yield embedder
    finally:
        await embedder.close()


def _secret(options: Any) -> str:
    """Two keys are two embedders; their texts both print as stars."""
    key = getattr(options, "api_key", None)
    return key.get_secret_value() if key is not None else ""
