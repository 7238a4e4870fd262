"""Writes docs/llms.txt, the index of the pages for language models (llmstxt.org): titles and first sentences.

`--check` writes nothing and fails if the file is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILE = DOCS / "llms.txt"
#: a link, of which the text stays
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
#: up to a full stop before a space or the end
SENTENCE = re.compile(r".+?\.(?=\s|$)")
#: how a block begins that is no prose: heading, table, list, image, fence, comment
OTHER = ("#", "|", "- ", "* ", "!", "```", "<")


def prose(text: str) -> Iterator[str]:
    """The blocks of prose, each in one line without links and emphasis."""
    for block in text.split("\n\n"):
        line = LINK.sub(r"\1", " ".join(block.split())).replace("*", "")
        if SENTENCE.match(line) and not line.startswith(OTHER):
            yield line


def entry(page: Path) -> str:
    title, _, rest = page.read_text().partition("\n")
    sentence = SENTENCE.match(next(prose(rest), ""))
    about = f": {sentence[0]}" if sentence else ""
    return f"- [{title.removeprefix('# ')}]({page.relative_to(DOCS)}){about}"


def text() -> str:
    about = next(prose((ROOT / "README.md").read_text()))
    pages = [entry(page) for page in sorted(DOCS.glob("*.md"))]
    graphs = [entry(page) for page in sorted((DOCS / "graph").glob("*.md"))]
    parts = ["# astromesh", f"> {about}", "## Pages", "\n".join(pages), "## Graphs", "\n".join(graphs)]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    made = text()
    if FILE.exists() and FILE.read_text() == made:
        return 0
    if "--check" in arguments:
        print("docs/llms.txt is out of date: run python scripts/llms.py")
        return 1
    FILE.write_text(made)
    print("wrote docs/llms.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
