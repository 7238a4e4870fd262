"""Chunkers: exact offsets, bounded sizes, nothing lost; and what Markdown's headings say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from astromesh.knowledge.base import Document
from astromesh.knowledge.chunking import ChunkOptions, MarkdownChunker, RecursiveChunker, SentenceChunker
from astromesh.tokens import estimate

CHUNKERS = [RecursiveChunker, SentenceChunker, MarkdownChunker]

TEXTS = st.lists(
    st.sampled_from(
        [
            "# Head\n",
            "\n",
            "\n\n",
            "word ",
            "Sentence. ",
            "```\n# code\n```\n",
            "é",
            "日本。",
            "x" * 90,
            "\r\n",
            " ",
        ]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    max_size=60,
).map("".join)


@pytest.mark.parametrize("chunker", CHUNKERS)
@settings(deadline=None)
@given(text=TEXTS, most=st.integers(8, 60), overlap=st.integers(0, 7))
def test_chunks_are_slices_within_the_limit(chunker, text, most, overlap):
    """Property: for any text, text[start:end] is the chunk, not blank, not too long, and in order."""
    chunks = chunker(ChunkOptions(max_tokens=most, overlap=overlap)).split(Document("d", text))
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.text.strip() == chunk.text != ""
        assert estimate(chunk.text) <= most
    assert [c.start for c in chunks] == sorted({c.start for c in chunks})


@pytest.mark.parametrize("chunker", [RecursiveChunker, SentenceChunker])
@settings(deadline=None)
@given(text=TEXTS, most=st.integers(8, 60), overlap=st.integers(0, 7))
def test_no_word_is_lost(chunker, text, most, overlap):
    """Property: every character that is not white space is in a chunk."""
    covered: set[int] = set()
    for chunk in chunker(ChunkOptions(max_tokens=most, overlap=overlap)).split(Document("d", text)):
        covered.update(range(chunk.start, chunk.end))
    assert all(text[i].isspace() for i in range(len(text)) if i not in covered)


def test_the_recursive_chunker_prefers_paragraphs():
    """Two paragraphs that do not fit together are cut between them."""
    first, second = "One thing. " * 6, "Another thing. " * 6
    chunks = RecursiveChunker(ChunkOptions(max_tokens=30, overlap=0)).split(
        Document("d", f"{first}\n\n{second}")
    )
    assert [c.text for c in chunks] == [first.strip(), second.strip()]


def test_the_sentence_chunker_keeps_sentences_whole_and_overlaps_them():
    """The next chunk begins with the last sentence of the one before."""
    text = " ".join(f"This is the sentence number {n}." for n in range(1, 9))
    chunks = SentenceChunker(ChunkOptions(max_tokens=24, overlap=8)).split(Document("d", text))
    assert all(c.text.endswith(".") and c.text.startswith("This is") for c in chunks)
    assert chunks[1].start < chunks[0].end


MARKDOWN = """---
title: Manual
---
Intro.

# Guide

## Reset **your** [password](x)

Open settings.

```sh
# no heading
```

> # quoted

Setext
------
Text.

### Empty

## Other
More.
"""


def test_markdown_sections_carry_the_path_of_their_headings():
    """ATX and setext headings count, those in code and quotations do not, empty ones make no chunk."""
    chunks = MarkdownChunker(ChunkOptions()).split(Document("d", MARKDOWN))
    assert [c.heading for c in chunks] == [
        "", "Guide > Reset your password", "Guide > Setext", "Guide > Other",
    ]  # fmt: skip
    assert chunks[0].text == "Intro."
    assert chunks[1].text.startswith("## Reset **your**")
    assert chunks[1].text.endswith("> # quoted")


def test_a_long_section_is_cut_and_every_part_keeps_its_heading():
    """A passage from the end of a section still says where it is from."""
    chunks = MarkdownChunker(ChunkOptions(max_tokens=40, overlap=0)).split(
        Document("d", "# Long\n\n" + "Some words here. " * 60)
    )
    assert len(chunks) > 3
    assert {c.heading for c in chunks} == {"Long"}


def test_a_document_of_headings_alone_is_not_lost():
    """A list of titles is what such a document says."""
    assert MarkdownChunker(ChunkOptions()).split(Document("d", "# A\n## B\n"))[0].text == "# A\n## B"


def test_windows_line_ends_do_not_shift_offsets():
    """Offsets count characters of the text as it is."""
    text = "# A\r\n\r\nOne.\r\n\r\n# B\r\nTwo.\r\n"
    assert [c.text for c in MarkdownChunker(ChunkOptions()).split(Document("d", text))] == [
        "# A\r\n\r\nOne.", "# B\r\nTwo.",
    ]  # fmt: skip


def test_an_overlap_that_is_no_overlap_is_refused():
    """It would never get ahead."""
    with pytest.raises(ValidationError, match="parent_tokens must be more than max_tokens"):
        ChunkOptions(max_tokens=50, parent_tokens=50)
    with pytest.raises(ValidationError, match="overlap must be less than max_tokens"):
        ChunkOptions(max_tokens=20, overlap=20)


def test_another_size_is_another_fingerprint():
    """Documents are cut anew when the configuration changes."""
    prints = {c(ChunkOptions(max_tokens=m)).fingerprint for c in CHUNKERS for m in (100, 200)}
    assert len(prints) == 6


def test_blank_pieces_at_the_beginning_of_a_chunk_do_not_make_the_next_one_begin_there_too() -> None:
    text = "\n# Head\n0\U00010000" + "00000\x80\x80\U00010000# Head\n"
    options = ChunkOptions(max_tokens=8, overlap=3)
    starts = [chunk.start for chunk in SentenceChunker(options).split(Document("d", text))]
    assert starts == sorted(set(starts))
