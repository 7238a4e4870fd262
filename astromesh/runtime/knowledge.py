"""Opens the embedder and the RAG pipeline that a manifest describes, and finds what an answer cites of it.

A passage is cited if a sentence of the answer has most of its words from it, or if the answer names its
document. A model that says what no passage says cites nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from astromesh.config.agent import RoleModel
from astromesh.config.providers import Embeddings, ModelBlock
from astromesh.config.rag import RAGManifest
from astromesh.errors import MissingExtra, ProviderError, StoreUnavailable
from astromesh.knowledge.base import (
    ChunkStores,
    DocumentReader,
    Embedder,
    KnowledgePipeline,
)
from astromesh.knowledge.ranking import stems
from astromesh.logs import get_logger
from astromesh.plugins import Deps, Plugins
from astromesh.providers.base import ModelPort
from astromesh.types import JsonObject

log = get_logger("astromesh.bootstrap")


async def open_embedder(spec: Embeddings | None, plugins: Plugins, deps: Deps) -> Embedder | None:
    """Opens the embedder of a block, once for all blocks with the same options.

    Returns None if there is no block, its API key is not set, or its extra is not installed: then search is
    lexical.

    Raises:
        ConfigError: the plugin or its options are wrong.
    """
    return None if spec is None else await open_embedder_block(spec.block, plugins, deps)


async def open_embedder_block(block: ModelBlock, plugins: Plugins, deps: Deps) -> Embedder | None:
    """Opens an embedder as `open_embedder` does."""
    if block.skipped:
        log.warning("embedder_skipped", embedder=block.name, reason=block.skipped)
        return None
    key = ("embedder", block.plugin, repr(block.options), _api_key(block.options))
    try:
        embedder: Embedder = await deps.resources.shared(key, lambda: _managed_embedder(block, plugins, deps))
    except MissingExtra as error:
        log.warning("embedder_skipped", embedder=block.name, reason=str(error))
        return None
    return embedder


@asynccontextmanager
async def _managed_embedder(block: ModelBlock, plugins: Plugins, deps: Deps) -> AsyncIterator[Embedder]:
    embedder: Embedder = await plugins.open("embedders", block.plugin, block.options, deps)
    try:
        yield embedder
    finally:
        await embedder.close()


def _api_key(options: Any) -> str:
    """Returns the key: two keys are two embedders, and both print as stars."""
    key = getattr(options, "api_key", None)
    return key.get_secret_value() if key is not None else ""


#: returns the reader of a kind of file
Readers = Callable[[str], DocumentReader]
#: opens the models of a reranker; returns None if none of them is usable
OpenModel = Callable[[str, RoleModel], Awaitable[ModelPort | None]]


async def open_rag_pipeline(
    manifest: RAGManifest, plugins: Plugins, deps: Deps, open_model: OpenModel | None = None
) -> KnowledgePipeline:
    """Opens a pipeline; it ingests nothing yet.

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
        return await plugins.open(group, name, {} if options is None else options, deps)

    chunker = await opened("chunkers", spec.chunking.strategy, spec.chunking.options)
    stores: ChunkStores = await opened("vector_stores", spec.store.backend, spec.store.options)
    deps.resources.on_close(stores.close)
    readers, grader = _readers(plugins), await _grader(manifest, plugins, deps, open_model)
    pipeline: KnowledgePipeline = plugins.load("pipelines", "rag")(
        manifest.name,
        await stores.collection(manifest.name),
        chunker,
        sources=[(manifest.folder(one).resolve(), one.glob) for one in spec.sources if one.path],
        pages=_pages(manifest, readers, plugins, deps),
        readers=readers,
        embedder=embedder,
        mode="lexical" if spec.mode == "hybrid" and embedder is None else spec.mode,
        top_k=spec.retrieval.top_k,
        # the grades of a reranker are the scores
        min_score=0.0 if grader else spec.retrieval.min_score,
        shared_owner=spec.owner,
        clock=deps.clock,
    )
    deps.resources.on_close(pipeline.close)
    return pipeline if grader is None else _reranked(pipeline, manifest, plugins, grader)


def _pages(manifest: RAGManifest, readers: Readers, plugins: Plugins, deps: Deps) -> Any:
    """Returns the pages of the sources; None if there are none."""
    urls = [(one.url, one.every) for one in manifest.spec.sources if one.url]
    if not urls:
        return None
    folder = deps.data_dir / "rag" / f"{manifest.name}.pages"
    return plugins.load("pipelines", "web_pages")(urls, folder, deps.http, readers, deps.clock)


async def refresh_pipeline(pipeline: KnowledgePipeline) -> None:
    """Ingests the source folders; a model of this process waits for the first question.

    If a service does not answer, the pipeline keeps its present index.

    Raises:
        StoreError: the index cannot be written.
        MissingExtra: a file needs a reader that is not installed.
    """
    try:
        await pipeline.refresh(load_model=False)
    except (ProviderError, StoreUnavailable) as error:
        log.warning("knowledge_not_refreshed", pipeline=pipeline.name, error=str(error))


async def _grader(manifest: RAGManifest, plugins: Plugins, deps: Deps, open_model: OpenModel | None) -> Any:
    """Returns what grades the passages of a pipeline; None if nothing does."""
    retrieval = manifest.spec.retrieval
    if retrieval.cross_encoder is not None:
        try:
            return await plugins.load("pipelines", "cross_encoder").open(retrieval.cross_encoder.model, deps)
        except MissingExtra as error:
            log.warning("cross_encoder_skipped", pipeline=manifest.name, reason=str(error))
            return None
    if retrieval.reranker is None or open_model is None:
        return None
    model = await open_model(manifest.name, retrieval.reranker)
    return None if model is None else plugins.load("pipelines", "model_grader")(model)


def _reranked(
    pipeline: KnowledgePipeline, manifest: RAGManifest, plugins: Plugins, grader: Any
) -> KnowledgePipeline:
    retrieval = manifest.spec.retrieval
    ranks = retrieval.cross_encoder or retrieval.reranker
    made: KnowledgePipeline = plugins.load("pipelines", "reranked")(
        pipeline,
        grader,
        candidates=ranks.candidates if ranks else 0,
        top_k=retrieval.top_k,
        min_score=retrieval.min_score,
    )
    return made


def _readers(plugins: Plugins) -> Readers:
    """Returns a function that makes one reader of each kind, with the first such file."""

    @cache
    def reader(kind: str) -> DocumentReader:
        made: DocumentReader = plugins.load("readers", kind)()
        return made

    return reader


#: share of a sentence's words that come from the cited passage
_SUPPORT = 0.6
#: shorter sentences, e.g. "Yes, you can.", cite nothing
_LEAST_WORDS = 4
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+|(?<=[。！？])")
_SEARCHED = frozenset(("document", "title", "heading", "text", "start", "end", "score"))


class Search(NamedTuple):
    """A search of the run. Args: result: as the model read it; a text without passages counts nothing."""

    pipeline: str
    result: str


class _Passage(NamedTuple):
    """Args: citation: without `spans`. words: stems of its text and its headings."""

    citation: JsonObject
    words: frozenset[str]


def cited_passages(
    answer: str, searches: Iterable[Search], nested: Iterable[JsonObject] = ()
) -> list[JsonObject]:
    """Returns `{document, title, passage, start, end, score, url, spans}` of each passage that is cited.

    `start` and `end` are offsets into the document, `spans` are offsets into the answer.

    Args:
        searches: those of the run. The order of the citations is that of the passages.
        nested: the citations of nested runs, which are cited if this answer draws on them, too.
    """
    passages = _retrieved(searches, nested)
    spans: dict[int, list[list[int]]] = {}
    for start, end in sentence_spans(answer):
        if (best := _best(passages, answer[start:end])) is not None:
            spans.setdefault(best, []).append([start, end])
    named = {passages[number].citation["document"] for number in spans}
    for number, passage in enumerate(passages):
        document = passage.citation["document"]
        if document in named:
            continue
        if place := re.search(rf"(?<!\w){re.escape(document)}(?!\w)", answer):
            named.add(document)
            spans[number] = [list(place.span())]
    return [{**passages[number].citation, "spans": spans[number]} for number in sorted(spans)]


def retrieved_passages(searches: Iterable[Search], nested: Iterable[JsonObject] = ()) -> list[JsonObject]:
    """Returns every passage that an answer could cite, as a citation without `spans`."""
    return [one.citation for one in _retrieved(searches, nested)]


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """The sentences of a text, as offsets."""
    start = 0
    for separator in _SENTENCE_END.finditer(text):
        if separator.start() > start:
            yield start, separator.start()
        start = separator.end()
    if start < len(text):
        yield start, len(text)


def document_address(pipeline: str, document: str) -> str:
    """The path at which the server shows a document."""
    return f"/v1/rag/{quote(pipeline, safe='')}/documents/{quote(document)}"


def _best(passages: list[_Passage], sentence: str) -> int | None:
    """The passage that has the most words of a sentence; None if none has enough of them."""
    words = set(stems(sentence))
    if len(words) < _LEAST_WORDS or not passages:
        return None
    best = max(range(len(passages)), key=lambda number: len(words & passages[number].words))
    return best if len(words & passages[best].words) >= _SUPPORT * len(words) else None


def _found(searches: Iterable[Search]) -> Iterator[_Passage]:
    for pipeline, result in searches:
        for one in _passages(result):
            citation = {
                "document": one["document"], "title": one["title"], "passage": one["text"],
                "start": one["start"], "end": one["end"], "score": one["score"],
                "url": one.get("url") or document_address(pipeline, one["document"]),
            }  # fmt: skip
            yield _Passage(citation, frozenset(stems(f"{one['heading']} {one['text']}")))


def _cited_before(nested: Iterable[JsonObject]) -> Iterator[_Passage]:
    for one in nested:
        citation = {key: value for key, value in one.items() if key != "spans"}
        yield _Passage(citation, frozenset(stems(f"{one['title']} {one['passage']}")))


def _retrieved(searches: Iterable[Search], nested: Iterable[JsonObject]) -> list[_Passage]:
    """Each passage once, with its last score."""
    passages = (*_found(searches), *_cited_before(nested))
    return list({(one.citation["url"], one.citation["start"]): one for one in passages}.values())


def _passages(result: str) -> Iterator[JsonObject]:
    try:
        value = orjson.loads(result)
    except orjson.JSONDecodeError:
        return  # too long for the model, and cut
    passages = value.get("passages") if isinstance(value, dict) else None
    yield from (one for one in passages or () if isinstance(one, dict) and one.keys() >= _SEARCHED)
