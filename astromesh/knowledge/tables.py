"""Tables as Markdown, and the reader of CSV files.

A long table becomes several short ones, each with the row of headings, so that a passage of its middle still
says what its cells are. They are short, because the vector of many rows is near to no question about one of
them. For its vector, a passage names the column of each cell.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from astromesh.types import JsonObject

#: cells of a file; larger tables belong into a database
MAX_CELLS = 200_000
#: characters of the rows that stand in one table
_TABLE_CHARACTERS = 200
#: the heading of a part of a table
ROWS = re.compile(r"Rows \d+ to \d+")
_CELLS = re.compile(r"(?<!\\)\|")
_DELIMITERS = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class CsvReader:
    """The reader `csv`: the first row has the names of the columns."""

    fingerprint = "csv/3"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        text = decode(data)
        try:
            dialect = csv.Sniffer().sniff(text[:20_000], ",;\t|")
        except csv.Error:
            dialect = csv.excel
        try:
            rows = list(csv.reader(io.StringIO(text, newline=""), dialect, strict=True))
        except csv.Error as error:
            raise ValueError(f"it is not a readable CSV file: {error}") from error
        found = table_sections(bounded(rows), "##")
        if not found:
            raise ValueError("it contains no rows")
        return found, {}


def decode(data: bytes) -> str:
    """Raises: ValueError: it is not text in UTF-8, or in UTF-16 with its mark."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError("it is binary or not UTF-8") from None
    if "\0" in text:
        raise ValueError("it is binary or not UTF-8")
    return text


def bounded(rows: Iterable[Sequence[object]]) -> Iterator[list[str]]:
    """The rows that have a cell with text, as texts. Raises: ValueError: there are too many cells."""
    left = MAX_CELLS
    for row in rows:
        left -= max(1, len(row))  # an empty row takes time, too
        if left < 0:
            raise ValueError(f"it has more than {MAX_CELLS} cells")
        cells = [_cell(value) for value in row]
        if any(cells):
            yield cells


def table_sections(rows: Iterable[list[str]], mark: str) -> str:
    """A table as Markdown without empty columns; a long one in parts, each below the numbers of its rows.

    Args:
        rows: the first one has the headings of the columns.
        mark: of the headings, e.g. `##`.
    """
    found = list(rows)
    used = sorted({column for row in found for column, cell in enumerate(row) if cell})
    head, *body = [[row[column] for column in used[: bisect_left(used, len(row))]] for row in found] or [[]]
    if not head:
        return ""
    # the heads are at most as long as the rows, however many columns there are
    parts = list(_parts(body, max(_TABLE_CHARACTERS, _characters(head))))
    if len(parts) < 2:
        return _table(head, body)
    sections, first = [], 1
    for part in parts:
        last = first + len(part) - 1
        sections.append(f"{mark} Rows {first} to {last}\n\n{_table(head, part)}")
        first = last + 1
    return "\n\n".join(sections)


def _parts(rows: Iterable[list[str]], most: int) -> Iterator[list[list[str]]]:
    part: list[list[str]] = []
    size = 0
    for row in rows:
        characters = _characters(row)
        if part and size + characters > most:
            yield part
            part, size = [], 0
        part.append(row)
        size += characters
    if part:
        yield part


def _characters(row: list[str]) -> int:
    return sum(map(len, row)) + 3 * len(row)


def _table(head: list[str], rows: list[list[str]]) -> str:
    width = max(len(head), *map(len, rows)) if rows else len(head)  # rows below a title have more cells
    lines = [head + [""] * (width - len(head)), ["---"] * width, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return " ".join(text.encode("utf-8", "replace").decode().split()).replace("|", r"\|")


def with_named_cells(text: str) -> str:
    """Returns Markdown with the rows of its tables as `column: cell; column: cell`."""
    lines = text.split("\n")
    found: list[str] = []
    names: list[str] | None = None
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|"):
            names = None
            found.append(line)
        elif names is not None:
            if not _DELIMITERS.fullmatch(line.strip()):
                found.append("; ".join(_named(names, _cells(line))))
        elif _DELIMITERS.fullmatch(after.strip()):
            names = _cells(line)
        else:  # the middle of a table whose headings stand elsewhere
            found.append(line)
    return "\n".join(found)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in _CELLS.split(row.strip().strip("|"))]


def _named(names: list[str], cells: list[str]) -> Iterator[str]:
    for number, cell in enumerate(cells):
        if cell:
            name = names[number] if number < len(names) else ""
            yield f"{name}: {cell}" if name else cell
