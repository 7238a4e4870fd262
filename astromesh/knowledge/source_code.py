"""The reader `code`: source code as Markdown, each definition at the left margin under a heading of its own.

The reader knows no language: a definition begins at the left margin with a word such as `def`, `class`,
`func` or `export`. What stands before it without a blank line, e.g. its comment or decorator, belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from astromesh.knowledge.tables import decode
from astromesh.types import JsonObject

_DEFINITION = re.compile(
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([a-z]+\))?|unsafe|open"
    r"|data|sealed|override|inline|extern|declare)\s+)*"
    r"(?:def|class|func|function|fn|interface|type|struct|enum|trait|impl|module|object|record|namespace|sub|proc"
    r"|const|let|var|CREATE)\b[^\n]*"
)
_LONGEST_HEADING = 100
#: at the left margin these begin what follows
_LEADS = ("@", "#", "//", "/*", " *", "*", "--", '"""')


class CodeReader:
    """The reader `code`."""

    fingerprint = "code/1"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        lines = decode(data).replace("\r\n", "\n").split("\n")
        if not any(map(str.strip, lines)):
            raise ValueError("it is empty")
        starts = list(_starts(lines))
        parts = zip([0, *starts], [*starts, len(lines)], strict=True)
        return "\n\n".join(filter(None, (_section(lines[start:end]) for start, end in parts))), {}


def _starts(lines: list[str]) -> Iterator[int]:
    """The lines at which definitions begin, with what leads to them."""
    free = 0  # the line behind the definition before
    for number, line in enumerate(lines):
        if not _DEFINITION.match(line):
            continue
        start = number
        while start > free and lines[start - 1].startswith(_LEADS):
            start -= 1
        free = number + 1
        if start:
            yield start


def _section(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    if not text.strip():
        return ""
    named = next((found[0] for line in lines if (found := _DEFINITION.match(line))), "")
    heading = f"## {' '.join(named.rstrip(' {:').split())[:_LONGEST_HEADING]}\n\n" if named else ""
    fence = "~" * max(3, *(len(run) + 1 for run in re.findall(r"^~{3,}", text, re.MULTILINE)), 3)
    return f"{heading}{fence}\n{text}\n{fence}"
