"""Chunkers by size: `recursive` (paragraphs, lines, sentences, words) and `sentence` (whole sentences)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from astromesh.abc.deps import Deps
from astromesh.abc.rag import Chunk, Document
from astromesh.rag.spans import LINE, PARAGRAPH, SENTENCE, WORD, Separators, Span, cut, join, pieces, trimmed

RECURSIVE: Separators = (PARAGRAPH, LINE, SENTENCE, WORD)


class ChunkOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_tokens: int = Field(300, ge=8, le=100_000, description="Most tokens of a chunk, estimated.")
    overlap: int = Field(40, ge=0, description="Tokens at the end of a chunk that the next one repeats.")

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> Self:
        if self.overlap >= self.max_tokens:
            raise ValueError("overlap must be less than max_tokens")
        return self


class RecursiveChunker:
    """Cuts at paragraphs where that is enough, else at lines, sentences, words."""

    Options = ChunkOptions
    separators: ClassVar[Separators] = RECURSIVE

    def __init__(self, options: ChunkOptions) -> None:
        self._options = options
        self.fingerprint = f"{type(self).__name__}/1/{options.max_tokens}/{options.overlap}"

    @classmethod
    async def open(cls, options: ChunkOptions, deps: Deps) -> Self:
        return cls(options)

    def split(self, document: Document) -> Sequence[Chunk]:
        return self.within(document, Span(0, len(document.text)), "")

    def within(self, document: Document, span: Span, heading: str) -> list[Chunk]:
        """The chunks of a part of the document, all under one heading."""
        text, limit = document.text, self._options.max_tokens
        parts = list(self.parts(text, span, limit))
        spans = (trimmed(text, joined) for joined in join(text, parts, limit, self._options.overlap))
        return [
            Chunk(document.id, text[start:end], start, end, heading, document.metadata)
            for start, end in spans
            if start < end
        ]

    def parts(self, text: str, span: Span, limit: int) -> Sequence[Span]:
        """The smallest pieces, those that are joined again."""
        return tuple(pieces(text, span, limit, self.separators))


class SentenceChunker(RecursiveChunker):
    """Never cuts inside a sentence that fits; overlaps whole sentences."""

    def parts(self, text: str, span: Span, limit: int) -> Sequence[Span]:
        sentences = (s for paragraph in cut(text, span, PARAGRAPH) for s in cut(text, paragraph, SENTENCE))
        return tuple(piece for s in sentences for piece in pieces(text, s, limit, (WORD,)))
