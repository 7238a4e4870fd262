"""Chunks: how a text is cut into them, the vectors of chunks, and the sections around them.

The chunkers are `recursive` (paragraphs, lines, sentences, words), `sentence` and `markdown` (sections). A
text is cut at the coarsest separators that make the pieces small enough. Neighbours are then joined up to
the limit, so that every chunk is a slice of its document. Sizes are estimated tokens (`astromesh.tokens`).
markdown-it reads the blocks of Markdown (CommonMark), so that a `#` in a code block is not a heading; only
its line numbers are used.

With a semantic embedder, the vector of a chunk is that of its text and, with half the weight, that of the
heading above it: a heading says in few words what the text is about, and hardly counts among many words.
Cells of tables are embedded with the names of their columns.

Small chunks may be searched while the model reads their parents. The parent of a chunk is the text around it
under the same heading, up to a number of tokens, put together from the stored chunks.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from astromesh.knowledge.base import Chunk, Document, Embedder, Passage, Piece, StoredDocument, Vector
from astromesh.knowledge.tables import ROWS, with_named_cells
from astromesh.plugins import Deps
from astromesh.tokens import estimate

PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
LINE = re.compile(r"\n")
#: the end of a sentence with closing quotes and brackets; CJK full stops need no space behind them
SENTENCE = re.compile(r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[”’」』）]*\s*")
WORD = re.compile(r"\s+")
Separators: TypeAlias = tuple[re.Pattern[str], ...]


class Span(NamedTuple):
    """A slice of a text, in characters."""

    start: int
    end: int


def split_span(text: str, span: Span, limit: int, separators: Separators) -> Iterator[Span]:
    """Tiles a span with pieces of at most `limit` tokens, cut at the coarsest possible separators."""
    if estimate(text[span.start : span.end]) <= limit:
        yield span
    elif separators:
        for part in cut_span(text, span, separators[0]):
            yield from split_span(text, part, limit, separators[1:])
    else:  # one endless word: a character has at most four bytes, and four bytes are a token
        for start in range(span.start, span.end, limit):
            yield Span(start, min(start + limit, span.end))


def cut_span(text: str, span: Span, separator: re.Pattern[str]) -> Iterator[Span]:
    """Tiles a span with the text between separators; a separator belongs to the piece before it."""
    start = span.start
    for found in separator.finditer(text, span.start, span.end):
        if start < found.end() < span.end:
            yield Span(start, found.end())
            start = found.end()
    yield Span(start, span.end)


def join_spans(text: str, parts: Sequence[Span], limit: int, overlap: int) -> Iterator[Span]:
    """Joins neighbours up to `limit` tokens; each chunk begins with up to `overlap` tokens of the last."""
    sizes = [estimate(text[part.start : part.end]) for part in parts]
    first = 0
    while first < len(parts):
        last, size = first, sizes[first]
        while last + 1 < len(parts) and size + sizes[last + 1] <= limit:
            last += 1
            size += sizes[last]
        yield Span(parts[first].start, parts[last].end)
        if last + 1 == len(parts):
            return
        begin = _step_back(sizes, first, last, min(overlap, limit - sizes[last + 1]))
        # a chunk begins at its first piece that is not blank, and the next one behind it
        first = max(begin, _first_words(text, parts, first, last) + 1)


def _step_back(sizes: Sequence[int], first: int, last: int, overlap: int) -> int:
    """The first piece of the next chunk: `last` + 1, less the pieces that fit into the overlap."""
    begin, left = last + 1, overlap
    while begin - 1 > first and sizes[begin - 1] <= left:
        begin -= 1
        left -= sizes[begin]
    return begin


def _first_words(text: str, parts: Sequence[Span], first: int, last: int) -> int:
    """The first piece that is not blank, or `last`."""
    return next((i for i in range(first, last) if not text[parts[i].start : parts[i].end].isspace()), last)


def trim_span(text: str, span: Span) -> Span:
    """The span without white space at both ends; empty (start == end) if there is nothing else."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return Span(start, end)


# -- by size -------------------------------------------------------------------------------------------------

RECURSIVE: Separators = (PARAGRAPH, LINE, SENTENCE, WORD)


class ChunkOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_tokens: int = Field(300, ge=8, le=100_000, description="Most tokens of a chunk, estimated.")
    overlap: int = Field(40, ge=0, description="Tokens at the end of a chunk that the next one repeats.")
    parent_tokens: int = Field(
        0, ge=0, le=100_000,
        description="Most tokens of the section around a found chunk that is returned for it; 0: the chunk.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> Self:
        if self.overlap >= self.max_tokens:
            raise ValueError("overlap must be less than max_tokens")
        if 0 < self.parent_tokens <= self.max_tokens:
            raise ValueError("parent_tokens must be more than max_tokens, or 0")
        return self


class RecursiveChunker:
    """Cuts at paragraphs if that is enough, else at lines, sentences, words."""

    Options = ChunkOptions
    separators: ClassVar[Separators] = RECURSIVE

    def __init__(self, options: ChunkOptions) -> None:
        self._options = options
        self.parent_tokens = options.parent_tokens
        self.fingerprint = f"{type(self).__name__}/1/{options.max_tokens}/{options.overlap}"

    @classmethod
    async def open(cls, options: ChunkOptions, deps: Deps) -> Self:
        return cls(options)

    def split(self, document: Document) -> Sequence[Chunk]:
        return self.split_span(document, Span(0, len(document.text)), "")

    def split_span(self, document: Document, span: Span, heading: str) -> list[Chunk]:
        """The chunks of a part of the document, all under one heading."""
        text, limit = document.text, self._options.max_tokens
        parts = list(self.parts(text, span, limit))
        spans = (trim_span(text, joined) for joined in join_spans(text, parts, limit, self._options.overlap))
        return [
            Chunk(document.id, text[start:end], start, end, heading, document.metadata)
            for start, end in spans
            if start < end
        ]

    def parts(self, text: str, span: Span, limit: int) -> Sequence[Span]:
        """The smallest pieces, which are then joined."""
        return tuple(split_span(text, span, limit, self.separators))


class SentenceChunker(RecursiveChunker):
    """Never cuts inside a sentence that fits; overlaps whole sentences."""

    def parts(self, text: str, span: Span, limit: int) -> Sequence[Span]:
        sentences = (
            s for paragraph in cut_span(text, span, PARAGRAPH) for s in cut_span(text, paragraph, SENTENCE)
        )
        return tuple(piece for s in sentences for piece in split_span(text, s, limit, (WORD,)))


# -- by sections of Markdown ---------------------------------------------------------------------------------

SEPARATOR = " > "
_LINE_END = re.compile(r"\r\n?|\n")
_MARKUP = re.compile(r"[*_`]+|!?\[([^\]]*)\]\([^)]*\)")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


@cache
def _parser() -> Any:
    """The parser, which is loaded with the first document, not at start."""
    parser = import_module("markdown_it").MarkdownIt("commonmark").enable("table")
    # inline markup is not needed; parsing blocks only is several times faster
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


class Heading(NamedTuple):
    """Args: start: offset of its line. end: offset behind its last line. level: 1 to 6."""

    level: int
    title: str
    start: int
    end: int


class Section(NamedTuple):
    """A heading and the text under it, up to the next heading. `body`: offset behind the heading."""

    path: str
    span: Span
    body: int


class MarkdownChunker(RecursiveChunker):
    """One chunk per section; long sections are cut further, empty sections left out."""

    def split(self, document: Document) -> Sequence[Chunk]:
        found = [
            chunk
            for section in sections(document.text)
            if _says_something(document.text, section)
            for chunk in self.split_span(document, section.span, section.path)
        ]
        return found or super().split(document)  # a document of headings only


def sections(text: str) -> Iterator[Section]:
    """The sections of a text in order; the text before the first heading has an empty path."""
    found = headings(text)
    start = front_matter(text).end
    yield Section("", Span(start, found[0].start if found else len(text)), start)
    path: list[Heading] = []
    for index, heading in enumerate(found):
        path = [above for above in path if above.level < heading.level] + [heading]
        end = found[index + 1].start if index + 1 < len(found) else len(text)
        yield Section(SEPARATOR.join(h.title for h in path), Span(heading.start, end), heading.end)


def headings(text: str) -> list[Heading]:
    """Every heading outside of quotations, lists and code blocks."""
    start = front_matter(text).end
    lines = [start, *(end.end() for end in _LINE_END.finditer(text, start)), len(text)]
    tokens = _parser().parse(text[start:])
    return [
        Heading(int(token.tag[1]), _plain(tokens[i + 1].content), lines[token.map[0]], lines[token.map[1]])
        for i, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0 and token.map
    ]


def front_matter(text: str) -> Span:
    """The YAML block between `---` lines at the start of a file; empty if there is none."""
    found = _FRONT_MATTER.match(text)
    return Span(0, found.end()) if found else Span(0, 0)


def _plain(title: str) -> str:
    return " ".join(_MARKUP.sub(lambda m: m[1] or "", title).split())


def _says_something(text: str, section: Section) -> bool:
    start, end = trim_span(text, Span(section.body, section.span.end))
    return start < end


# -- vectors of chunks ---------------------------------------------------------------------------------------


#: texts that are embedded together
EMBEDDED_TOGETHER = 512
#: how much the heading counts beside the text; chosen with tests/questions/english-tuning.tsv
_HEADING_WEIGHT = 0.5
_HEADING_LINE = re.compile(r"\A#{1,6} [^\n]*\n\s*")


def vectors_fingerprint(embedder: Embedder) -> str:
    """Changes whenever the same chunk would have another vector."""
    return f"{embedder.fingerprint}+{_HEADING_WEIGHT}+cells" if embedder.semantic else embedder.fingerprint


async def chunk_vectors(embedder: Embedder, chunks: Sequence[tuple[Document, Chunk]]) -> list[Vector]:
    """Returns the unit vector of each chunk, in their order.

    Raises:
        ProviderError: the texts cannot be embedded.
    """
    titles = [chunk.heading or document.title for document, chunk in chunks]
    if not embedder.semantic:
        texts = [f"{title}\n\n{chunk.text}" for title, (_, chunk) in zip(titles, chunks, strict=True)]
        return await _embed(embedder, texts)
    bodies = [with_named_cells(_HEADING_LINE.sub("", chunk.text) or chunk.text) for _, chunk in chunks]
    headings = [_last_heading(title) for title in titles]
    distinct = list(dict.fromkeys(filter(None, headings)))
    found = await _embed(embedder, [*bodies, *distinct])
    by_heading = dict(zip(distinct, found[len(bodies) :], strict=True))
    return [
        _combine(vector, by_heading[heading]) if heading else vector
        for vector, heading in zip(found, headings, strict=False)
    ]


def _last_heading(path: str) -> str:
    """The heading right above a text; the numbers of the rows of a table tell nothing."""
    *above, last = path.split(SEPARATOR)
    return (above[-1] if above else "") if ROWS.fullmatch(last) else last


async def _embed(embedder: Embedder, texts: Sequence[str]) -> list[Vector]:
    found: list[Vector] = []
    for start in range(0, len(texts), EMBEDDED_TOGETHER):
        found += await embedder.embed(texts[start : start + EMBEDDED_TOGETHER])
    return found


def _combine(text: Vector, heading: Vector) -> Vector:
    summed = [a + _HEADING_WEIGHT * b for a, b in zip(text, heading, strict=True)]
    length = math.hypot(*summed) or 1.0
    return array("f", [one / length for one in summed])


# -- parents of chunks ---------------------------------------------------------------------------------------


#: returns the documents of an id, of each owner whose documents a query may read
ReadDocuments = Callable[[str], Awaitable[Sequence[StoredDocument]]]


async def parent_passages(
    found: Sequence[Passage], top_k: int, max_tokens: int, read: ReadDocuments
) -> tuple[Passage, ...]:
    """Returns the parents of passages with the scores of these, each once.

    Args:
        found: best first.
        top_k: parents at most.
        max_tokens: of a parent.
    """
    documents: dict[str, Sequence[StoredDocument]] = {}
    parents: list[Passage] = []
    for passage in found:
        if len(parents) == top_k:
            break
        chunk = passage.chunk
        if any(_holds(one.chunk, chunk) for one in parents):
            continue
        if chunk.document not in documents:
            documents[chunk.document] = await read(chunk.document)
        made = (parent_chunk(one, chunk, max_tokens) for one in documents[chunk.document])
        parents.append(replace(passage, chunk=next(filter(None, made), chunk)))
    return tuple(parents)


def parent_chunk(document: StoredDocument, chunk: Chunk, max_tokens: int) -> Chunk | None:
    """Returns the text around a chunk under its heading; None if the document does not hold the chunk."""
    pieces = document.pieces
    sought = Piece(chunk.start, chunk.text, chunk.heading)
    if sought not in pieces:
        return None
    first, last = _neighbours(pieces, pieces.index(sought), max_tokens)
    start = pieces[first].start
    moved = tuple(one._replace(start=one.start - start) for one in pieces[first : last + 1])
    text = document._replace(pieces=moved).text
    return replace(chunk, text=text, start=start, end=start + len(text))


def _neighbours(pieces: Sequence[Piece], place: int, max_tokens: int) -> tuple[int, int]:
    """The first and the last piece of a parent: it grows to both sides in turn as long as there is room."""
    ends = {1: place, -1: place}
    room, sides = max_tokens - estimate(pieces[place].text), [1, -1]
    while sides:
        side = sides.pop(0)
        number = ends[side] + side
        if not 0 <= number < len(pieces) or pieces[number].heading != pieces[place].heading:
            continue
        room -= estimate(pieces[number].text)
        if room < 0:
            break
        ends[side] = number
        sides.append(side)
    return ends[-1], ends[1]


def _holds(parent: Chunk, chunk: Chunk) -> bool:
    """Whether a parent has the text of a chunk, at its place."""
    at = chunk.start - parent.start
    return parent.document == chunk.document and at >= 0 and parent.text.startswith(chunk.text, at)
