"""A cross-encoder on disk: its grades order what a pipeline finds, and are its scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from astromesh.errors import ConfigError, ProviderUnavailable
from astromesh.knowledge.base import Chunk, Passage
from astromesh.knowledge.onnx import CrossEncoder
from astromesh.plugins import Deps
from astromesh.runtime.bootstrap import open_single_pipeline
from tests.integration.knowledge.rag_files import pipeline_file
from tests.integration.knowledge.tiny_onnx import write_cross_encoder

WORDS = ("green", "tea", "water", "hot")


def passages(*texts: str) -> list[Passage]:
    return [Passage(Chunk("d", text, 0, len(text)), 0.5) for text in texts]


@pytest.mark.parametrize("outputs", [1, 2])
async def test_a_pair_is_read_together(tmp_path: Path, outputs: int) -> None:
    """Any number of passages and any text have grades; one output and two mean the same order."""
    write_cross_encoder(tmp_path / "m", WORDS, outputs)
    model = await CrossEncoder.open("m", Deps(config_dir=tmp_path))
    texts = ("Water is wet", "Green tea with hot water", "", "\ud800 x", "hot tea", "word " * 3000)
    grades = await model.grades("Is green tea hot?", passages(*texts))
    assert sorted(grades, reverse=True)[:2] == [grades[1], grades[4]]
    assert all(0 <= grade <= 1 for grade in grades)
    assert grades[1] > 0.7 > 0.5 > grades[0]


async def test_a_folder_without_a_model_and_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs model"):
        await CrossEncoder.open("m", Deps(config_dir=tmp_path))
    write_cross_encoder(tmp_path / "m", WORDS)
    (tmp_path / "m" / "model.onnx").write_bytes(b"nothing")
    model = await CrossEncoder.open("m", Deps(config_dir=tmp_path))
    with pytest.raises(ProviderUnavailable, match="m does not run"):
        await model.grades("tea", passages("tea"))


async def test_a_pipeline_orders_and_leaves_out_by_its_grades(tmp_path: Path) -> None:
    config, docs = tmp_path / "config", tmp_path / "docs"
    docs.mkdir()
    for name, text in (("a", "tea tea tea tea"), ("b", "green tea, hot"), ("c", "tea and cake")):
        (docs / f"{name}.md").write_text(text)
    write_cross_encoder(config / "models" / "m", WORDS)
    retrieval = {"cross_encoder": {"model": "models/m"}, "min_score": 0.5}
    pipeline_file(config, sources=[{"path": str(docs)}], retrieval=retrieval)
    async with open_single_pipeline(config, tmp_path / "data", "k") as pipe:
        found = await pipe.query("green hot tea")
        assert [one.chunk.document for one in found] == ["a.md", "b.md"]
        assert all(one.score > 0.5 for one in found)
        (config / "models" / "m" / "model.onnx").write_bytes(b"nothing")
    async with open_single_pipeline(config, tmp_path / "data", "k") as pipe:
        with capture_logs() as logs:
            assert await pipe.query("green hot tea")
        assert [one["event"] for one in logs] == ["passages_not_reranked"]
