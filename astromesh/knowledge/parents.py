"""Parents: small chunks are searched, and the section around each is what the model reads.

The parent of a chunk is the text around it under the same heading, up to a number of tokens. It is put
together from the stored chunks, so that its offsets are those of the document.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from astromesh.knowledge.base import Chunk, Passage, Piece, StoredDocument
from astromesh.tokens import estimate

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
