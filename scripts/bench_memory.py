"""Measures memory: step 4 in long sessions on every backend, and semantic search by size.

    python scripts/bench_memory.py [--postgres URL|start] [--redis URL] [--sizes 20000,100000] [--turns 10000]

Without a URL a server's backends are left out; `start` starts the tests' PostgreSQL. The vectors are random
and of 384 dimensions, the words of the texts are drawn by Zipf's law, so that some are in nearly every text.
All databases must be empty.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1]))

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `astromesh serve` does; read by numpy's import

import numpy as np
from figures import Figure, show

from astromesh.core.memory import ConversationalMemory, MemoryManager
from astromesh.memory.strategies import SlidingWindow
from astromesh.plugins import Deps, Plugins
from astromesh.types import SessionKey, Turn
from tests.platform.postgres import PostgresServer, database_url, execute

SIZE = 384
WORDS = 12_000
SCOPE = ("default", "bench", "ann")


class RandomEmbedder:
    """A unit vector for each text, the same for the same text."""

    dimensions, semantic, fingerprint = SIZE, True, "random"

    async def embed(self, texts: Sequence[str]) -> Sequence[array[float]]:
        return [self._vector(text) for text in texts]

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Nothing is open."""

    def _vector(self, text: str) -> array[float]:
        vector = np.random.default_rng(abs(hash(text))).standard_normal(SIZE).astype(np.float32)
        return array("f", (vector / np.linalg.norm(vector)).tobytes())


async def timed(work: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Milliseconds of each of `times` calls."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def show_times(name: str, taken: Sequence[float], limit: Sequence[float] = (), goal: str = "") -> None:
    show(Figure("memory", f"{name}, p50", median(taken), "ms", median(limit) if limit else None, goal))
    show(Figure("memory", f"{name}, p95", quantiles(taken, n=20)[-1], "ms", detail=True))


async def long_sessions(backend: str, deps: Deps, turns: int) -> None:
    """build_context for a session of `turns` turns beside one of ten, in turn, so that noise hits both."""
    store = await Plugins().open("conversation_stores", backend, {}, deps)
    memory = MemoryManager(ConversationalMemory(store, SlidingWindow(10)))
    for name, count in (("short", 10), ("long", turns)):
        key = SessionKey("default", "bench", name)
        for start in range(0, count, 500):
            part = [
                Turn("user" if n % 2 == 0 else "assistant", f"turn {n} " + "word " * 30)
                for n in range(start, min(start + 500, count))
            ]
            await store.append(key, "ann", part)
    taken: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(400):
        for name in taken:
            taken[name] += await timed(
                lambda name=name: memory.build_context("bench", name, "?", owner="ann"), 1
            )
    show_times(f"{backend}: step 4 of {turns:,} turns beside 10", taken["long"], taken["short"])


def text(rng: random.Random, weights: Sequence[float], n: int) -> str:
    return f"passage{n} " + " ".join(f"w{i}" for i in rng.choices(range(WORDS), weights, k=60))


async def search(backend: str, deps: Deps, size: int) -> None:
    """Adds `size` passages of one principal, then asks by words and vectors."""
    store = await Plugins().open("semantic_stores", backend, {"max_passages": size}, deps)
    rng, weights = random.Random(1), [1 / (n + 3) for n in range(WORDS)]
    started = time.perf_counter()
    for start in range(0, size, 500):
        about = {"source": "conversation", "session_id": "s-1", "run_id": "run_1"}
        passages = [(text(rng, weights, n), about) for n in range(start, min(start + 500, size))]
        await store.add(*SCOPE, passages)
    seconds = time.perf_counter() - started
    show(Figure("memory", f"{backend}: {size:,} passages stored", size / seconds, "texts/s"))
    started = time.perf_counter()
    await store.search(*SCOPE, "w1 w2")
    show(Figure("memory", f"{backend}: their first query", (time.perf_counter() - started) * 1000, "ms"))
    for kind, low in (("frequent words", 0), ("rare words", 2000)):
        queries = iter([" ".join(f"w{low + rng.randrange(500)}" for _ in range(6)) for _ in range(400)])
        taken = await timed(lambda queries=queries: store.search(*SCOPE, next(queries)), 100)
        show_times(f"{backend}: search, {kind}", taken)
    started = time.perf_counter()
    await store.erase_owner("default", "ann")
    show(Figure("memory", f"{backend}: all erased", time.perf_counter() - started, "s"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--postgres", default="")
    parser.add_argument("--redis", default="")
    parser.add_argument("--sizes", default="20000")
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--only", default="", help="step4 or search")
    given = parser.parse_args()
    if given.postgres != "start":
        asyncio.run(measure(given))
        return
    server = PostgresServer()
    server.start()
    try:
        execute(server.url, "create database bench_memory")
        given.postgres = database_url(server.url, "bench_memory")
        asyncio.run(measure(given))
    finally:
        server.close()


async def measure(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        deps = Deps(
            data_dir=Path(folder),
            storage_url=given.postgres,
            redis_url=given.redis,
            embedder=RandomEmbedder(),
        )
        servers = ["postgres"] * bool(given.postgres) + ["redis"] * bool(given.redis)
        if given.only != "search":
            for backend in ("in_memory", "sqlite", *servers):
                await long_sessions(backend, deps, given.turns)
        if given.only != "step4":
            for size in map(int, given.sizes.split(",")):
                for backend in ("sqlite", *(["pgvector"] * bool(given.postgres))):
                    await search(backend, deps, size)
        await deps.resources.close()


if __name__ == "__main__":
    main()
