"""Retrieval quality over the question set of `tests/questions`, on every store.

The vectors are those of the hashing embedder, which is no semantic one: its nearness is that of words and of
their parts. What embedding models can do beyond that is not measured here.
"""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.knowledge.chunking import ChunkOptions, MarkdownChunker
from astromesh.knowledge.hashing import HashingEmbedder
from astromesh.knowledge.pipeline import Mode, RAGPipeline
from astromesh.plugins import Plugins
from astromesh.telemetry.clock import SystemClock
from tests.platform.stores import deps_of

FOLDER = Path(__file__).parents[2] / "questions"
QUESTIONS = [
    tuple(row) for row in csv.reader((FOLDER / "questions.tsv").read_text().splitlines(), delimiter="\t")
]
EMBEDDER = HashingEmbedder()
MODES: tuple[Mode, ...] = ("lexical", "vector", "hybrid")


@pytest.fixture(params=["sqlite", "pgvector"])
async def pipelines(request, tmp_path) -> AsyncIterator[dict[Mode, RAGPipeline]]:
    deps = deps_of(request, SystemClock(), tmp_path, embedder=EMBEDDER)
    plugin = Plugins().load("vector_stores", request.param)
    store = await (await plugin.open(plugin.Options(), deps)).collection("questions")
    made = {
        mode: RAGPipeline(
            "questions", store, MarkdownChunker(ChunkOptions()), mode=mode, embedder=EMBEDDER,
            sources=[(FOLDER / "documents", "*.md")],
        )
        for mode in MODES
    }  # fmt: skip
    await made["lexical"].refresh()
    yield made
    await deps.resources.close()


async def recall(pipeline: RAGPipeline, k: int) -> tuple[float, list[str]]:
    """The share of questions whose passage is among the best `k`, and the questions that miss it."""
    missed = []
    for question, document, heading in QUESTIONS:
        found = [p.chunk for p in await pipeline.query(question, top_k=k)]
        if not any(c.document == document and c.heading.endswith(heading) for c in found):
            missed.append(question)
    return 1 - len(missed) / len(QUESTIONS), missed


def test_the_question_set_names_passages_that_exist():
    """Every question has an answer in the documents; there are enough of them."""
    assert len(QUESTIONS) >= 40
    for _, document, heading in QUESTIONS:
        assert f"\n## {heading}\n" in (FOLDER / "documents" / document).read_text()


async def test_recall_at_five(pipelines):
    """Lexical at least 0.8, and hybrid not below the better of both."""
    found = {mode: await recall(pipelines[mode], 5) for mode in MODES}
    print({mode: round(share, 3) for mode, (share, _) in found.items()})
    assert found["lexical"][0] >= 0.8, found["lexical"][1]
    assert found["hybrid"][0] >= max(found["lexical"][0], found["vector"][0]), found


def test_the_hashing_embedder_does_not_pretend_to_know_meaning():
    """It is labelled as no semantic embedder."""
    assert EMBEDDER.semantic is False
