"""How fast knowledge is taken in and found: python scripts/bench_rag.py --chunks 100000 --postgres start

Texts are made of words of a Zipf distribution, as in natural language; vectors lie in clusters, and are made
beforehand, so that no figure holds the time of an embedder. Queries come one after another.

--postgres URL measures pgvector in a database of its own there; `start` starts the tests' server for it.
--model measures the default model instead: its intake, the first question and the memory before it.

Beside the time on the clock stands the processor time of this process, which a busy machine changes less. Of
pgvector it lacks what PostgreSQL does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1]))

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `astromesh serve` does; read by numpy's import

import numpy as np
from figures import Figure, show

from astromesh.knowledge.base import Chunk, ChunkStore, Document
from astromesh.knowledge.chunking import ChunkOptions, MarkdownChunker
from astromesh.knowledge.loaders import parse_document
from astromesh.knowledge.onnx import OnnxEmbedder, OnnxOptions
from astromesh.knowledge.pipeline import RAGPipeline
from astromesh.plugins import Deps, Plugins, Resources
from tests.platform.postgres import PostgresServer, database_url, execute

ROOT = Path(__file__).parents[1]
WORDS, CLUSTERS, PER_DOCUMENT = 30_000, 1_000, 50


class Corpus:
    """Documents of PER_DOCUMENT sections each, a section a chunk."""

    def __init__(self, chunks: int, dimensions: int) -> None:
        self._random, self.chunks = random.Random(7), chunks
        self._cumulated = list(itertools.accumulate(1 / (rank + 3) for rank in range(WORDS)))
        made = np.random.default_rng(7)
        self._centres = made.standard_normal((CLUSTERS, dimensions), dtype=np.float32)
        self._noise = made

    def text(self, words: int) -> str:
        found = self._random.choices(range(WORDS), cum_weights=self._cumulated, k=words)
        return " ".join(map(word, found))

    def documents(self) -> list[Document]:
        count = -(-self.chunks // PER_DOCUMENT)
        return [Document(f"d{n}", self._document(), f"Document {n}") for n in range(count)]

    def _document(self) -> str:
        return "\n\n".join(f"## {self.text(3)}\n\n{self.text(80)}." for _ in range(PER_DOCUMENT))

    def vectors(self, count: int) -> list[array[float]]:
        centres = self._centres[self._noise.integers(0, CLUSTERS, count)]
        rows = centres + 0.6 * self._noise.standard_normal(centres.shape, dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return [array("f", row.tobytes()) for row in rows]


class Prepared:
    """An embedder whose vectors are there already."""

    fingerprint = "bench/1"

    def __init__(self, corpus: Corpus, dimensions: int, semantic: bool) -> None:
        self.dimensions, self._corpus, self.semantic = dimensions, corpus, semantic

    async def embed(self, texts: Sequence[str]) -> list[array[float]]:
        return self._corpus.vectors(len(texts))

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


def word(rank: int) -> str:
    """Pronounceable, so that stems and prefixes behave as for words."""
    letters = ""
    for _ in range(3):
        rank, consonant = divmod(rank, 20)
        rank, vowel = divmod(rank, 5)
        letters += "bcdfghjklmnpqrstvwxz"[consonant] + "aeiou"[vowel]
    return letters


#: ranks of the words of a query: rare ones, a mixture as in questions, and those of nearly every chunk
QUERIES = {
    "rare words": lambda r: [r.randrange(2_000, WORDS) for _ in range(3)],
    "a question": lambda r: [
        r.randrange(0, 30),
        r.randrange(30, 400),
        r.randrange(400, 3_000),
        r.randrange(3_000, WORDS),
    ],
    "frequent words": lambda r: [r.randrange(20, 300) for _ in range(3)],
    "words of nearly every chunk": lambda r: [r.randrange(0, 8) for _ in range(3)],
}


async def measure(
    name: str, store: ChunkStore, corpus: Corpus, embedder: Prepared | None, queries: int
) -> None:
    pipeline = RAGPipeline(
        name, store, MarkdownChunker(ChunkOptions()), embedder=embedder,
        mode="hybrid" if embedder else "lexical",
    )  # fmt: skip
    documents = corpus.documents()
    kind = f"{embedder.dimensions} dimensions" if embedder else "words only"
    started = time.perf_counter()
    settle, store.settle = store.settle, _nothing  # type: ignore[method-assign]
    await pipeline.ingest(documents)
    took = time.perf_counter() - started
    show(Figure("knowledge", f"{name}, {kind}: taken in", corpus.chunks / took, "chunks/s"))
    started = time.perf_counter()
    await settle()
    show(Figure("knowledge", f"{name}, {kind}: settled", time.perf_counter() - started, "s"))
    started = time.perf_counter()
    await pipeline.ingest(documents)
    show(
        Figure("knowledge", f"{name}, {kind}: the same again, unchanged", time.perf_counter() - started, "s")
    )
    await pipeline.query("the first reads the vectors")
    for what, ranks in QUERIES.items():
        await _asked(f"{name}, {kind}, {what}", pipeline, ranks, queries)


async def _asked(what: str, pipeline: RAGPipeline, ranks, queries: int) -> None:
    chosen, times, worked, found = random.Random(3), [], [], 0
    for _ in range(queries):
        text = " ".join(map(word, ranks(chosen)))
        started, busy = time.perf_counter(), time.process_time()
        found += len(await pipeline.query(text))
        times.append((time.perf_counter() - started) * 1000)
        worked.append((time.process_time() - busy) * 1000)
    times.sort()
    p95 = times[int(len(times) * 0.95)]
    if not found:
        raise SystemExit(f"{what}: nothing was found")
    show(Figure("knowledge", f"{what}, p50", statistics.median(times), "ms"))
    show(Figure("knowledge", f"{what}, p95", p95, "ms", detail=True))
    show(Figure("knowledge", f"{what}, processor, p50", statistics.median(worked), "ms"))


async def _nothing() -> None: ...


@asynccontextmanager
async def opened(plugin: str, deps: Deps) -> AsyncIterator[ChunkStore]:
    loaded = Plugins().load("vector_stores", plugin)
    try:
        yield await (await loaded.open(loaded.Options(), deps)).collection("bench")
    finally:
        await deps.resources.close()


async def run(arguments: argparse.Namespace, url: str) -> None:
    for embedded in (False, True):
        for plugin in ("sqlite", "pgvector")[: 2 if url else 1]:
            corpus = Corpus(arguments.chunks, arguments.dimensions)
            embedder = Prepared(corpus, arguments.dimensions, arguments.semantic) if embedded else None
            with tempfile.TemporaryDirectory() as folder:
                storage = ""
                if plugin == "pgvector":
                    database = f"bench_{uuid4().hex}"
                    execute(url, f"create database {database}")
                    storage = database_url(url, database)
                deps = Deps(
                    data_dir=Path(folder), storage_url=storage, resources=Resources(), embedder=embedder
                )
                async with opened(plugin, deps) as store:
                    await measure(plugin, store, corpus, embedder, arguments.queries)
                if storage:
                    execute(url, f"drop database {database} with (force)")


# -- the default model ---------------------------------------------------------------------------------------


async def measure_model() -> None:
    """Intake by the default model, the first question that needs it, and the memory around it."""
    embedder = await OnnxEmbedder.open(OnnxOptions(), Deps())
    with tempfile.TemporaryDirectory() as folder:
        deps = Deps(data_dir=Path(folder, "data"), embedder=embedder)
        async with opened("sqlite", deps) as store:
            chunker, sources = MarkdownChunker(ChunkOptions()), [(ROOT / "config" / "knowledge", "*.md")]
            few = RAGPipeline("few", store, chunker, embedder=embedder, mode="hybrid", sources=sources)
            await few.refresh(load_model=False)
            show(Figure("model", "memory before the first question", memory(), "MB"))
            started = time.perf_counter()
            await few.query("How long may my secret word be?")
            took = (time.perf_counter() - started) * 1000
            show(Figure("model", "first question, answered by words", took, "ms", goal="<= 600"))
            await few.refresh()
            show(Figure("model", "memory with the model", memory(), "MB"))
        for what, place in (("short", ROOT / "tests" / "questions" / "documents"), ("long", ROOT / "docs")):
            texts = [one.text for file in sorted(place.glob("*.md"))[:10] for one in _chunks(chunker, file)]
            words = sum(len(text.split()) for text in texts) / len(texts)
            busy = time.process_time()
            await embedder.embed(texts)
            rate = len(texts) / (time.process_time() - busy)
            goal = ">= 60" if what == "short" else ""
            name = f"embedded, {what} texts ({words:.0f} words on average)"
            show(Figure("model", name, rate, "texts/s/core", goal=goal))


def _chunks(chunker: MarkdownChunker, file: Path) -> Sequence[Chunk]:
    return chunker.split(parse_document(file.name, file.read_text(), "text/markdown"))


def memory() -> float:
    """Megabytes that the process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=100, help="of each kind")
    parser.add_argument("--postgres", default="", metavar="URL", help="or: start")
    parser.add_argument("--semantic", action="store_true", help="rank as with a semantic embedder")
    parser.add_argument("--model", action="store_true", help="measure the default model")
    arguments = parser.parse_args()
    if arguments.model:
        asyncio.run(measure_model())
        return
    if arguments.postgres != "start":
        asyncio.run(run(arguments, arguments.postgres))
        return
    server = PostgresServer()
    server.start()
    try:
        asyncio.run(run(arguments, server.url))
    finally:
        server.close()


if __name__ == "__main__":
    main()
