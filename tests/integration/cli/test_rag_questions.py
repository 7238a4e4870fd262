"""`astromesh rag questions`: questions that a model makes from the passages of a pipeline."""

from __future__ import annotations

from pathlib import Path

from astromesh.cli.commands.rag import Wanted, generate_questions
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
        questions, missing = await generate_questions(runtime, Wanted("k", "helper", per_passage=2))
    lines = "How is it made?\ttea.md\tGreen tea\nAnd why?\ttea.md\tGreen tea\n"
    assert (question_lines(questions), missing) == (lines, 1)
    assert read_questions(lines) == tuple(questions)
    assert "Steep it." in provider.requests[0].messages[-1].content
    assert spread(10, 3) == [0, 3, 6]
