"""Prints an answer as rendered Markdown while it comes: finished blocks once, the open one anew."""

from __future__ import annotations

import re
from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from astromesh.cli.printer import Printer
from astromesh.text import CONTROL_CHARACTERS

#: seconds between two renderings of the open block
_PAUSE = 0.08
_CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


class MarkdownPrinter(Printer):
    """Prints for people at a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console()
        self._live: Live | None = None
        self._open = ""
        self._rendered_at = 0.0

    def _text(self, text: str) -> None:
        self._open += "".join(char for char in text if char in "\n\t" or not _CONTROL.match(char))
        finished, self._open = split_blocks(self._open)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        if finished:
            self._live.update(Markdown(""))
            self._console.print(Markdown(finished))
        if finished or monotonic() - self._rendered_at >= _PAUSE:
            self._rendered_at = monotonic()
            self._live.update(Markdown(self._open), refresh=True)

    def _end_line(self) -> None:
        if self._live is not None:
            self._live.update(Markdown(self._open), refresh=True)
            self._live.stop()
        self._live, self._open, self._printed = None, "", ""


def split_blocks(text: str) -> tuple[str, str]:
    """Returns the finished blocks of a Markdown text, and the rest: the block that may still grow."""
    end = text.rfind("\n\n")
    while end >= 0 and len(_FENCE.findall(text[:end])) % 2:  # inside of a fence
        end = text.rfind("\n\n", 0, end)
    return ("", text) if end < 0 else (text[: end + 2], text[end + 2 :])
