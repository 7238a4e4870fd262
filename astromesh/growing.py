"""A text that grows by small pieces: what a model says, delta by delta."""

from __future__ import annotations

#: pieces that are kept one by one; as a list, an answer of 100,000 deltas would be 100,000 strings
_SINGLE = 512


class GrowingText:
    """Takes pieces, gives the text. Holds little more than the text itself.

    `io.StringIO` is no such thing: CPython 3.11 keeps up to 100,000 written strings before it joins them.
    """

    __slots__ = ("_blocks", "_pieces")

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._pieces: list[str] = []

    def write(self, piece: str) -> None:
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) == _SINGLE:
            self._blocks.append("".join(pieces))
            pieces.clear()

    def getvalue(self) -> str:
        return "".join((*self._blocks, *self._pieces))
