"""docs/benchmarks.md and its pictures are what the figures that `make bench` measured say."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.platform.astromesh import ROOT

DOCS = ROOT / "docs"


def test_the_page_and_its_pictures_are_made_of_the_figures() -> None:
    done = subprocess.run([sys.executable, "scripts/bench_page.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run python scripts/bench_page.py"


def test_every_figure_is_on_the_page_once() -> None:
    """So no row of a part hides another of its name."""
    figures = json.loads((DOCS / "benchmarks.json").read_text())
    rows = [(part, row) for part, measured in figures.items() for row in measured["figures"]]
    names = [(part, row["part"], row["name"]) for part, row in rows]
    assert len(names) == len(set(names))
    page = (DOCS / "benchmarks.md").read_text()
    shown = [row["name"] for _, row in rows if not row.get("detail")]
    assert [name for name in shown if f"| {name}" not in page] == []
