"""`astromesh rag` as a process: what it prints, how it ends, and what a kill leaves behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.terminal import Terminal, astromesh, environment
from tests.integration.knowledge.rag_files import pdf, pipeline_file
from tests.platform.astromesh import PROGRAM

DOCUMENTS, SECTIONS = 400, 12


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A pipeline `k` over `docs`, by words and hashing vectors."""
    (tmp_path / "config" / "agents").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tea.md").write_text("# Tea\n\n## Green tea\n\nSteep it at 80 degrees.")
    (tmp_path / "docs" / "paper.pdf").write_bytes(pdf("Coffee is roasted"))
    pipeline_file(
        tmp_path / "config",
        sources=[{"path": "../../docs", "glob": ["**/*.md", "**/*.pdf"]}],
        embeddings={"provider": "hashing", "dimensions": 64},
    )
    return tmp_path


def test_ingest_and_query(project: Path) -> None:
    """Counts in a line or as JSON; passages with their sources; nothing found is no failure."""
    done = astromesh(project, "rag", "ingest", "k")
    assert (done.returncode, done.stdout) == (0, "2 added, 0 changed, 0 removed, 0 unchanged\n")
    assert done.stderr == ""
    (project / "docs" / "paper.pdf").unlink()
    again = astromesh(project, "rag", "ingest", "k", "--json")
    assert json.loads(again.stdout) == {
        "pipeline": "k",
        "added": 0,
        "changed": 0,
        "removed": 1,
        "unchanged": 1,
    }
    asked = astromesh(project, "rag", "query", "k", "how hot for green tea?", "--json")
    best = json.loads(asked.stdout)["passages"][0]
    text = (project / "docs" / "tea.md").read_text()
    assert text[best["start"] : best["end"]] == best["text"]
    shown = astromesh(project, "rag", "query", "k", "-", given="green tea")
    assert shown.stdout.startswith("tea.md · Tea > Green tea [")
    nothing = astromesh(project, "rag", "query", "k", "zebra", "--where", "document=nope.md")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "No passage matches.\n")


def test_documents_are_listed_and_deleted(project: Path) -> None:
    """A tenant's own, and those of the folders, which only the folders change."""
    (project / "notes").mkdir()
    (project / "notes" / "milk.md").write_text("# Milk\n\nKeep it cold.")
    astromesh(project, "rag", "ingest", "k", "notes", "--tenant", "acme")
    listed = astromesh(project, "rag", "list", "k", "--tenant", "acme", "--json")
    assert [one["id"] for one in json.loads(listed.stdout)["documents"]] == ["milk.md"]
    folders = astromesh(project, "rag", "list", "k", "--of", "sources")
    assert ["tea.md" in folders.stdout, "milk.md" in folders.stdout] == [True, False]
    refused = astromesh(project, "rag", "delete", "k", "tea.md")
    assert (refused.returncode != 0, "comes from a folder" in refused.stderr) == (True, True)
    assert astromesh(project, "rag", "delete", "k", "milk.md").stdout == "0 removed\n"
    assert astromesh(project, "rag", "delete", "k", "milk.md", "--tenant", "acme").stdout == "1 removed\n"
    nothing = astromesh(project, "rag", "list", "k", "--tenant", "acme").stderr
    assert "'acme' has added no document" in nothing and "--of sources" in nothing


def test_questions_measure_a_pipeline(project: Path) -> None:
    """The measures, and what came instead of the right passage."""
    coffee, tea = "Is coffee roasted?", "How hot for green tea?"
    lines = [
        f"{tea}\ttea.md\tGreen tea",
        f"{coffee}\tpaper.pdf",
        f"{coffee}\ttea.md",
        "Who won the cup in Lisbon?",
    ]
    (project / "questions.tsv").write_text("\n".join(lines))
    done = astromesh(project, "rag", "eval", "k", "--questions", "questions.tsv", "--json")
    report = json.loads(done.stdout)
    assert (report["questions"], report["hit@1"], report["hit@5"], report["refused"]) == (
        4,
        0.667,
        0.667,
        1.0,
    )
    assert (report["mrr"], report["ndcg@10"]) == (0.667, 0.667)
    assert [one["rank"] for one in report["asked"]] == [1, 1, 0, 0]
    (stored,) = project.rglob("evaluations/rag_*.json")
    assert stored.stem == report["evaluation_id"]
    assert json.loads(stored.read_text())["asked"] == report["asked"]
    shown = astromesh(project, "rag", "eval", "k", "--questions", "questions.tsv").stdout
    assert "paper.pdf" in shown
    assert "hit@1 0.667" in shown
    (project / "questions.tsv").write_text("a\tb\tc\td")
    wrong = astromesh(project, "rag", "eval", "k", "--questions", "questions.tsv")
    assert wrong.returncode != 0
    assert "Line 1" in wrong.stderr


def test_a_path_is_taken_in(project: Path) -> None:
    """Documents of a tenant beside the sources; `--where` selects them."""
    (project / "note.txt").write_text("tea time is at five")
    assert astromesh(project, "rag", "ingest", "k", "note.txt").stdout.startswith("1 added")
    found = astromesh(project, "rag", "query", "k", "tea", "--where", "document=note.txt", "--json")
    assert [p["document"] for p in json.loads(found.stdout)["passages"]] == ["note.txt"]
    (project / "more.txt").write_text("tea time of acme")
    assert astromesh(project, "rag", "ingest", "k", "more.txt", "--tenant", "acme").stdout.startswith(
        "1 added"
    )
    for tenant, names in (("acme", {"tea.md", "more.txt"}), ("other", {"tea.md"})):
        found = astromesh(project, "rag", "query", "k", "tea time", "--tenant", tenant, "--json")
        assert {p["document"] for p in json.loads(found.stdout)["passages"]} == names


def test_wrong_calls_are_2_with_a_hint(project: Path) -> None:
    """A pipeline, a path, a query, a filter that is none; faults of the pipeline's file."""
    for words, said in (
        (("ingest", "kk"), "Did you mean `k`?"),
        (("ingest", "k", "nowhere"), "no file or folder"),
        (("query", "k", " "), "empty"),
        (("query", "k", "x", "--where", "nonsense"), "KEY=VALUE"),
    ):
        done = astromesh(project, "rag", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    pipeline_file(project / "config", retrieval={"mode": "vector"})
    broken = astromesh(project, "rag", "query", "k", "x")
    assert broken.returncode == 2
    assert "vector needs spec.embeddings" in broken.stderr


def test_a_missing_extra_is_named(project: Path) -> None:
    """A PDF in the folder, and pypdf not there."""
    program = (
        "import sys; sys.modules['pypdf'] = None; sys.argv = ['astromesh', 'rag', 'ingest', 'k']\n"
        "from astromesh.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, env=environment(project), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install 'astromesh[rag]'" in done.stderr


def test_a_bar_shows_how_far_it_is(project: Path) -> None:
    """On a terminal only, and the result stands after it."""
    terminal = Terminal(project, "rag", "ingest", "k", term="xterm")
    terminal.wait_for("documents")
    terminal.wait_for("2 added")
    assert terminal.end() == 0


def test_a_killed_ingest_goes_on_where_it_was(project: Path) -> None:
    """kill -9 in the middle, then again: nothing twice, nothing missing."""
    for n in range(DOCUMENTS):
        sections = "\n\n".join(f"## Part {part}\n\nnumber{n} part{part} filler" for part in range(SECTIONS))
        (project / "docs" / f"d{n:03}.md").write_text(f"# Document {n}\n\n{sections}")
    index = project / ".astromesh" / "rag" / "k.db"
    killed = subprocess.Popen([PROGRAM, "rag", "ingest", "k"], cwd=project, env=environment(project))
    try:
        while stored(index) < 50:
            assert killed.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    half = stored(index)
    assert 0 < half < DOCUMENTS
    done = json.loads(astromesh(project, "rag", "ingest", "k", "--json").stdout)
    assert done["added"] + done["unchanged"] == DOCUMENTS + 2
    assert done["unchanged"] >= half
    with closing(sqlite3.connect(index)) as connection:
        counted = connection.execute(
            "SELECT count(*), count(DISTINCT document || ' ' || start) FROM chunks"
            " WHERE document IN (SELECT number FROM documents WHERE id LIKE 'd%')"
        ).fetchone()
        vectors = connection.execute(
            "SELECT count(*) FROM vectors JOIN chunks ON chunks.id = chunk"
            " WHERE document IN (SELECT number FROM documents WHERE id LIKE 'd%')"
        ).fetchone()
        words = connection.execute("SELECT count(*) FROM words WHERE words MATCH 'filler'").fetchone()
    assert counted == (DOCUMENTS * SECTIONS, DOCUMENTS * SECTIONS)
    assert vectors == words == (DOCUMENTS * SECTIONS,)


def stored(index: Path) -> int:
    """Documents that are committed."""
    if not index.exists():
        return 0
    with closing(sqlite3.connect(index)) as connection:
        try:
            count: int = connection.execute("SELECT count(*) FROM documents").fetchone()[0]
        except sqlite3.OperationalError:  # not made yet
            return 0
    return count
