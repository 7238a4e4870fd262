"""docs/llms.txt has every page, with its title and first sentence."""

from __future__ import annotations

import subprocess
import sys

from tests.platform.astromesh import ROOT


def test_the_index_is_what_its_script_makes_of_the_pages() -> None:
    done = subprocess.run([sys.executable, "scripts/llms.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run python scripts/llms.py"


def test_every_page_has_a_sentence_that_says_what_it_is_about() -> None:
    index = (ROOT / "docs" / "llms.txt").read_text()
    entries = [line for line in index.splitlines() if line.startswith("- [")]
    pages = list((ROOT / "docs").rglob("*.md"))
    made = [line for line in entries if "](reference/" in line]
    assert len(entries) == len(pages) + len(made)
    assert len(made) == 6  # pages that only the built book has
    assert [line for line in entries if not line.endswith(".") or len(line) > 320] == []
