"""README leads to every page of docs/."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import links_of
from tests.platform.astromesh import ROOT


def linked_from(page: Path) -> set[Path]:
    targets = (target.partition("#")[0] for target in links_of(page.read_text()))
    return {(page.parent / target).resolve() for target in targets}


def test_readme_leads_to_every_page() -> None:
    """Those on graphs hang together: README leads to the first of them, and that to the others."""
    docs = ROOT / "docs"
    graphs = docs / "graph" / "graph.md"
    assert {*docs.glob("*.md"), graphs} - linked_from(ROOT / "README.md") == set()
    assert set(graphs.parent.glob("*.md")) - {graphs} - linked_from(graphs) == set()
