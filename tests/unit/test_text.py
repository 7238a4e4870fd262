"""A growing text is the pieces joined, however many they are, and holds no list of them."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from astromesh.text import TextBuffer


@given(st.lists(st.text(max_size=3), max_size=1500))
def test_the_text_is_its_pieces_joined(pieces: list[str]) -> None:
    text = TextBuffer()
    for piece in pieces:
        text.write(piece)
    assert text.getvalue() == "".join(pieces)
    assert text.getvalue() == "".join(pieces)


def test_pieces_are_let_go() -> None:
    text, piece = TextBuffer(), "a word of its own"
    before = sys.getrefcount(piece)
    for _ in range(10_240):
        text.write(piece)
    assert sys.getrefcount(piece) == before
