"""README leads to every page of docs/."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import links_of
from tests.platform.astromesh import ROOT


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
