"""The `markdown` chunker: a section is a chunk, under the path of its headings; long ones are cut further.

markdown-it reads the blocks (CommonMark), so that a `#` in a code block is no heading. Only its line numbers
are used: the chunks are slices of the text as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt

from astromesh.abc.rag import Chunk, Document
from astromesh.rag.chunking import RecursiveChunker
from astromesh.rag.spans import Span, trimmed

SEPARATOR = " > "

_LINE_END = re.compile(r"\r\n?|\n")
_MARKUP = re.compile(r"[*_`]+|!?\[([^\]]*)\]\([^)]*\)")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)

# inline markup is not needed; blocks alone are several times faster
_PARSER = MarkdownIt("commonmark").enable("table")
_PARSER.core.ruler.enableOnly(["normalize", "block"])


class Heading(NamedTuple):
    """Args: start: offset of its line. end: offset behind its last line. level: 1 to 6."""

    level: int
    title: str
    start: int
    end: int


class Section(NamedTuple):
    """A heading with what stands under it, up to the next heading. `body`: offset behind the heading."""

    path: str
    span: Span
    body: int


class MarkdownChunker(RecursiveChunker):
    """One chunk per section of at most `max_tokens`; headings without text of their own make none."""

    def split(self, document: Document) -> Sequence[Chunk]:
        found = [
            chunk
            for section in sections(document.text)
            if _says_something(document.text, section)
            for chunk in self.within(document, section.span, section.path)
        ]
        return found or super().split(document)  # nothing but headings: they are what it says


def sections(text: str) -> Iterator[Section]:
    """The sections of a text in order; what stands before the first heading has an empty path."""
    found = headings(text)
    start = front_matter(text).end
    yield Section("", Span(start, found[0].start if found else len(text)), start)
    path: list[Heading] = []
    for index, heading in enumerate(found):
        path = [above for above in path if above.level < heading.level] + [heading]
        end = found[index + 1].start if index + 1 < len(found) else len(text)
        yield Section(SEPARATOR.join(h.title for h in path), Span(heading.start, end), heading.end)


def headings(text: str) -> list[Heading]:
    """Every heading that is not inside a quotation, a list or a code block."""
    start = front_matter(text).end
    lines = [start, *(end.end() for end in _LINE_END.finditer(text, start)), len(text)]
    tokens = _PARSER.parse(text[start:])
    return [
        Heading(int(token.tag[1]), _plain(tokens[i + 1].content), lines[token.map[0]], lines[token.map[1]])
        for i, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0 and token.map
    ]


def front_matter(text: str) -> Span:
    """The YAML block between `---` lines that a file may begin with; empty where there is none."""
    found = _FRONT_MATTER.match(text)
    return Span(0, found.end()) if found else Span(0, 0)


def _plain(title: str) -> str:
    return " ".join(_MARKUP.sub(lambda m: m[1] or "", title).split())


def _says_something(text: str, section: Section) -> bool:
    start, end = trimmed(text, Span(section.body, section.span.end))
    return start < end
