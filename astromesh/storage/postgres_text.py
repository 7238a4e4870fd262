"""Texts as PostgreSQL can keep them: any character but NUL, which is written as two others and read back."""

from __future__ import annotations

_NUL, _ESCAPE = "\x00", "\x1a"


def stored(text: str) -> str:
    """A text without NUL; unchanged unless it holds NUL or SUBSTITUTE."""
    if _NUL in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace(_NUL, _ESCAPE + "0")
    return text


def restored(text: str) -> str:
    """What `stored` was given."""
    if _ESCAPE in text:
        return text.replace(_ESCAPE + "0", _NUL).replace(_ESCAPE + "1", _ESCAPE)
    return text
