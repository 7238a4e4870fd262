"""`astromesh rag questions`: questions that a model makes from the passages of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.cli.commands.rag import QuestionSetRequest, evaluate, generate_questions
from astromesh.errors import InvalidInput
from astromesh.evaluation.retrieval import question_lines, read_questions, spread
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.knowledge.rag_files import pipeline_file


async def test_a_question_file_is_made_from_the_documents(tmp_path: Path) -> None:
    """Each question with document and heading; an answer that is no JSON is counted and left out."""
    write(tmp_path, manifest())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tea.md").write_text("# Tea\n\n## Green tea\n\nSteep it.\n\n## Black\n\nBoil it.")
    pipeline_file(tmp_path, "k", sources=[{"path": "../docs"}])
    made = '{"questions": ["How is it\\tmade?", "And why?", "Too many?"]}'
    provider = ScriptedProvider(f"Here: {made}", "I cannot.")
    async with runtime_of(tmp_path, provider) as runtime:
        questions, missing = await generate_questions(
            runtime, QuestionSetRequest("k", "helper", per_passage=2)
        )
    lines = "How is it made?\ttea.md\tGreen tea\nAnd why?\ttea.md\tGreen tea\n"
    assert (question_lines(questions), missing) == (lines, 1)
    assert read_questions(lines) == tuple(questions)
    assert "Steep it." in provider.requests[0].messages[-1].content
    assert spread(10, 3) == [0, 3, 6]


@pytest.mark.parametrize("content", [None, b"Caf\xe9?\tmenu.md"])
def test_a_file_of_questions_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    """One that does not exist, and one that is not UTF-8."""
    file = tmp_path / "questions.tsv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"Cannot read .*questions\.tsv"):
        evaluate("k", file, config=tmp_path, data=tmp_path)
