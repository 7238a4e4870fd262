"""The vectors of chunks, under which questions find them.

With a semantic embedder, the vector of a chunk is that of its text and, with half the weight, that of the
heading above it: a heading says in few words what the text is about, and hardly counts among many words.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence

from astromesh.knowledge.base import Chunk, Document, Embedder, Vector
from astromesh.knowledge.chunking import SEPARATOR

#: texts that are embedded together
EMBEDDED_TOGETHER = 512
#: how much the heading counts beside the text; chosen with tests/questions/english-tuning.tsv
_HEADING_WEIGHT = 0.5
_HEADING_LINE = re.compile(r"\A#{1,6} [^\n]*\n\s*")


def vectors_fingerprint(embedder: Embedder) -> str:
    """Changes whenever the same chunk would have another vector."""
    return f"{embedder.fingerprint}+{_HEADING_WEIGHT}" if embedder.semantic else embedder.fingerprint


async def chunk_vectors(embedder: Embedder, chunks: Sequence[tuple[Document, Chunk]]) -> list[Vector]:
    """Returns the unit vector of each chunk, in their order.

    Raises:
        ProviderError: the texts cannot be embedded.
    """
    titles = [chunk.heading or document.title for document, chunk in chunks]
    if not embedder.semantic:
        texts = [f"{title}\n\n{chunk.text}" for title, (_, chunk) in zip(titles, chunks, strict=True)]
        return await _embed(embedder, texts)
    bodies = [_HEADING_LINE.sub("", chunk.text) or chunk.text for _, chunk in chunks]
    headings = [title.rpartition(SEPARATOR)[2] for title in titles]
    distinct = list(dict.fromkeys(filter(None, headings)))
    found = await _embed(embedder, [*bodies, *distinct])
    by_heading = dict(zip(distinct, found[len(bodies) :], strict=True))
    return [
        _combine(vector, by_heading[heading]) if heading else vector
        for vector, heading in zip(found, headings, strict=False)
    ]


async def _embed(embedder: Embedder, texts: Sequence[str]) -> list[Vector]:
    found: list[Vector] = []
    for start in range(0, len(texts), EMBEDDED_TOGETHER):
        found += await embedder.embed(texts[start : start + EMBEDDED_TOGETHER])
    return found


def _combine(text: Vector, heading: Vector) -> Vector:
    summed = [a + _HEADING_WEIGHT * b for a, b in zip(text, heading, strict=True)]
    length = math.hypot(*summed) or 1.0
    return array("f", [one / length for one in summed])
