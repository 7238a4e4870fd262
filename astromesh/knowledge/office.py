"""Readers of Office files: DOCX, PPTX and XLSX as Markdown, with their headings, lists and tables."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import docx
import openpyxl
import pptx
from docx.opc.exceptions import PackageNotFoundError
from docx.table import Table
from docx.text.paragraph import Paragraph
from openpyxl.utils.exceptions import InvalidFileException
from pptx.exc import PackageNotFoundError as PptxPackageNotFoundError

from astromesh.knowledge.tables import bounded, table_sections
from astromesh.types import JsonObject

#: bytes of a file once its parts are unpacked
MAX_UNPACKED = 200 * 1024 * 1024
#: errors that the libraries raise for broken files
_BROKEN = (
    AttributeError, LookupError, OSError, SyntaxError, TypeError, ValueError, NotImplementedError,
    zipfile.BadZipFile, PackageNotFoundError, PptxPackageNotFoundError, InvalidFileException,
)  # fmt: skip
_LIKE_MARK = ("#", ">", "```", "~~~")
#: columns that a table of Word has at most: a span of a few bytes would else become millions of cells
_MAX_SPAN = 63


class DocxReader:
    """The reader `docx`."""

    fingerprint = "docx/2"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        document = _opened(docx.Document, data)
        about = _about(document.core_properties)
        parts = list(filter(None, map(_block, document.iter_inner_content())))
        return _joined(parts, about), about


class PptxReader:
    """The reader `pptx`: a section for each slide, with its tables and its notes."""

    fingerprint = "pptx/2"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        slides = _opened(pptx.Presentation, data)
        about = _about(slides.core_properties)
        parts = [part for number, slide in enumerate(slides.slides, 1) for part in _slide(number, slide)]
        return _joined(parts, about), about


class XlsxReader:
    """The reader `xlsx`: a section for each sheet. Cells have the values that were stored with formulas."""

    fingerprint = "xlsx/3"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        book = _opened(lambda file: openpyxl.load_workbook(file, read_only=True, data_only=True), data)
        about = _about(book.properties)
        parts = []
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # some programs write the size of a sheet wrong
            if table := table_sections(bounded(sheet.iter_rows(values_only=True)), "###"):
                parts.append(f"## {_line(sheet.title)}\n\n{table}")
        return _joined(parts, about), about


def _opened(read: Callable[[Any], Any], data: bytes) -> Any:
    """Raises: ValueError: the file is broken, encrypted or too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            if sum(part.file_size for part in parts.infolist()) > MAX_UNPACKED:
                raise ValueError(f"it has more than {MAX_UNPACKED} bytes unpacked")
    except zipfile.BadZipFile:
        raise ValueError("it is not an Office file, or it is encrypted") from None
    try:
        return read(io.BytesIO(data))
    except _BROKEN as error:
        raise ValueError(f"it is not a readable Office file: {error}") from error


def _about(properties: Any) -> JsonObject:
    author = getattr(properties, "author", None) or getattr(properties, "creator", None)
    found = {"title": _line(properties.title), "author": _line(author)}
    return {key: value for key, value in found.items() if value}


def _joined(parts: list[str], about: JsonObject) -> str:
    """Raises: ValueError: there is no text."""
    if not parts:
        raise ValueError("it contains no text")
    heading = [f"# {about['title']}"] if "title" in about and not parts[0].startswith("# ") else []
    return "\n\n".join([*heading, *parts])


def _block(block: Paragraph | Table) -> str:
    """A paragraph, heading, list item or table of a document."""
    if isinstance(block, Table):
        return table_sections(bounded(map(_row, block.rows)), "######")
    text, style = _line(block.text), (block.style.name or "") if block.style is not None else ""
    if not text:
        return ""
    if style == "Title":
        return f"# {text}"
    level = style.removeprefix("Heading ")
    if level != style and level.isdecimal():
        return f"{'#' * min(int(level), 6)} {text}"
    return f"- {text}" if style.startswith("List") else _escaped(text)


def _row(row: Any) -> list[str]:
    """Raises: ValueError: a cell is merged over more columns than a table has."""
    widest = max((cell.grid_span for cell in row._tr.tc_lst), default=0)  # noqa: SLF001 (before it is unfolded)
    if widest > _MAX_SPAN:
        raise ValueError(f"a cell spans {widest} columns")
    return [cell.text for cell in row.cells]


def _slide(number: int, slide: Any) -> Iterator[str]:
    title = slide.shapes.title
    name = _line(title.text_frame.text) if title is not None else ""
    found = [part for shape in slide.shapes if shape != title for part in _shape(shape)]
    notes = _line(slide.notes_slide.notes_text_frame.text) if _has_notes(slide) else ""
    if not (name or found or notes):
        return
    yield f"## Slide {number}: {name}" if name else f"## Slide {number}"
    yield from found or ([_escaped(name)] if not notes else [])
    if notes:
        yield f"Notes: {notes}"


def _has_notes(slide: Any) -> bool:
    return slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None


def _shape(shape: Any) -> Iterator[str]:
    if getattr(shape, "shapes", None) is not None:  # a group
        for inner in shape.shapes:
            yield from _shape(inner)
    elif shape.has_text_frame:
        yield from (_escaped(text) for one in shape.text_frame.paragraphs if (text := _line(one.text)))
    elif shape.has_table:
        yield table_sections(bounded([cell.text for cell in row.cells] for row in shape.table.rows), "###")


def _escaped(text: str) -> str:
    return f"\\{text}" if text.startswith(_LIKE_MARK) else text


def _line(text: str | None) -> str:
    return " ".join((text or "").encode("utf-8", "replace").decode().split())
