"""Writes docs/llms.txt, the index of the pages for language models (llmstxt.org): titles and first sentences,
in the order of the book.

`--check` writes nothing and fails if the file is out of date.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "book"))
import reference  # noqa: E402

DOCS = ROOT / "docs"
FILE = DOCS / "llms.txt"


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, where tags name functions that nobody calls here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
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


def generated(page: str) -> str:
    """The entry of a page that only the built book has."""
    title, about = reference.PAGES[Path(page).stem]
    return f"- [{title}]({page}): {about}"


def entry(page: Path) -> str:
    title, _, rest = page.read_text().partition("\n")
    sentence = SENTENCE.match(next(prose(rest), ""))
    about = f": {sentence[0]}" if sentence else ""
    return f"- [{title.removeprefix('# ')}]({page.relative_to(DOCS)}){about}"


def pages(contents: Any) -> Iterator[str]:
    """The pages below a place of the table of contents, in its order."""
    if isinstance(contents, str):
        yield contents
    else:
        parts = contents.values() if isinstance(contents, dict) else contents
        yield from itertools.chain.from_iterable(map(pages, parts))


def section(title: str, contents: Any) -> str:
    names = list(pages(contents))
    entries = [entry(DOCS / name) for name in names if (DOCS / name).exists()]
    entries += [
        generated(name) for name in names if Path(name).stem in reference.PAGES and "reference/" in name
    ]
    return "\n".join([f"## {title}", "", *entries])


def text() -> str:
    about = next(prose((ROOT / "README.md").read_text()))
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]
    parts = [section(title, contents) for part in nav for title, contents in part.items() if title != "Home"]
    return "\n\n".join(["# astromesh", f"> {about}", *parts]) + "\n"


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
