"""Output: JSON for scripts, tables for people, and nothing that could drive a terminal.

Rich is loaded with the first thing that it prints: a server has nothing for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

#: control characters but tab and newline; a model's text must not move the cursor or set the window's title
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: columns where nobody looks: a table in a pipe is not cut
_WIDE = 10_000


def plain(text: str) -> str:
    """The text without control characters, where it goes to a terminal; else as it is."""
    return _CONTROL.sub("", text) if sys.stdout.isatty() else text


def write(text: str) -> None:
    """Prints text of a model or a tool as it comes."""
    sys.stdout.write(plain(text))
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """One JSON value, for people to read in a terminal, on one line in a pipe."""
    option = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    sys.stdout.write(orjson.dumps(value, option=option | orjson.OPT_APPEND_NEWLINE).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table without lines; in a pipe every cell stands whole."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=_WIDE, highlight=False)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(_CONTROL.sub("", cell)) for cell in row))
    console.print(table)


def note(text: str, style: str = "dim") -> None:
    """A line beside the results, on stderr; without colour where that is no terminal."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(_CONTROL.sub("", text), style))
