"""README leads to every page of docs/."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.docs.blocks import blocks_of, links_of
from tests.platform.astromesh import ROOT
from tests.platform.forked import shared
from tests.platform.processes import Command, plain_environment


def linked_from(page: Path) -> set[Path]:
    targets = (target.partition("#")[0] for target in links_of(page.read_text()))
    return {(page.parent / target).resolve() for target in targets}


def test_readme_leads_to_every_page() -> None:
    """Those of a folder hang together: README leads to the first of them, and that to the others."""
    docs = ROOT / "docs"
    heads = {docs / "graph" / "graph.md", *docs.glob("*/index.md")}
    assert {*docs.glob("*.md"), *heads} - linked_from(ROOT / "README.md") == set()
    for head in heads:
        assert set(head.parent.glob("*.md")) - {head} - linked_from(head) == set()


def test_readme_is_short_and_has_a_picture_two_commands_and_three_doors() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 120
    assert "](docs/images/run.png)" in text
    doors = text.partition("## Three doors")[2]
    assert [door for door in ("**YAML.**", "**Python.**", "**HTTP.**") if door not in doors] == []


def test_the_first_question_has_the_answer_that_readme_shows(tmp_path: Path) -> None:
    blocks = blocks_of("README.md", (ROOT / "README.md").read_text())
    question = json.loads(re.findall(r"-d '(.*)'", blocks[1].content)[0])["query"]
    command = ["astromesh", "run", "support-agent", question, "--config", str(ROOT / "config"), "--json"]
    done = shared().run(Command(command, plain_environment(tmp_path), tmp_path))
    assert done.returncode == 0, done.stderr
    for part in blocks[2].content.split("…")[:-1]:  # a line of JSON, of which parts are left out
        assert part.strip().removesuffix(",").replace("\n", "\\n") in done.stdout
