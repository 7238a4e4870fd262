"""Office files, CSV and source code as Markdown: headings and tables are kept, broken files are refused."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import docx
import openpyxl
import pptx
import pytest

from astromesh.knowledge.base import Document, DocumentReader
from astromesh.knowledge.chunking import ChunkOptions, MarkdownChunker
from astromesh.knowledge.loaders import CodeReader
from astromesh.knowledge.office import DocxReader, PptxReader, XlsxReader
from astromesh.knowledge.tables import CsvReader, with_named_cells


def saved(file: Any) -> bytes:
    out = io.BytesIO()
    file.save(out)
    return out.getvalue()


def test_a_document_keeps_headings_lists_and_tables() -> None:
    file = docx.Document()
    file.core_properties.title, file.core_properties.author = "On tea", "Ann"
    file.add_heading("Kinds", level=2)
    file.add_paragraph("There are # many.")
    file.add_paragraph("green", style="List Bullet")
    table = file.add_table(rows=2, cols=2)
    for cell, text in zip(
        (c for row in table.rows for c in row.cells), ("Kind", "Min|utes", "green", "2"), strict=True
    ):
        cell.text = text
    text, about = DocxReader().read(saved(file))
    assert about == {"title": "On tea", "author": "Ann"}
    assert text == (
        "# On tea\n\n## Kinds\n\nThere are # many.\n\n- green\n\n"
        "| Kind | Min\\|utes |\n| --- | --- |\n| green | 2 |"
    )


def test_a_cell_over_more_columns_than_word_has_is_refused() -> None:
    """A few bytes would else become millions of cells."""
    file = docx.Document()
    row = file.add_table(rows=1, cols=2).rows[0]
    row.cells[0].text = "wide"
    row._tr.tc_lst[0].grid_span = 63
    assert "| wide | wide |" in DocxReader().read(saved(file))[0]
    row._tr.tc_lst[0].grid_span = 50_000
    with pytest.raises(ValueError, match="a cell spans 50000 columns"):
        DocxReader().read(saved(file))


def test_slides_keep_titles_tables_and_notes() -> None:
    file = pptx.Presentation()
    slide = file.slides.add_slide(file.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Tea", "Steep it.\n# Pour it."
    slide.notes_slide.notes_text_frame.text = "Say it slowly."
    table = file.slides.add_slide(file.slide_layouts[6]).shapes.add_table(2, 1, 0, 0, 100, 100).table
    table.cell(0, 0).text, table.cell(1, 0).text = "Kind", "green"
    text, _ = PptxReader().read(saved(file))
    assert text.removeprefix("# PowerPoint Presentation\n\n") == (
        "## Slide 1: Tea\n\nSteep it.\n\n\\# Pour it.\n\nNotes: Say it slowly.\n\n"
        "## Slide 2\n\n| Kind |\n| --- |\n| green |"
    )


def test_for_its_vector_a_row_names_the_column_of_each_cell() -> None:
    """Rows whose headings are elsewhere stay, as text does; a bar in a cell does not end it."""
    head, rows = "Prices:\n| item | price |\n| --- |:-:|\n", "| a\\|b | 2 |\n| c |  |\n| d | 4 | new |\n"
    assert with_named_cells(f"{head}{rows}\n| e | 5 |\n| f | 6 |") == (
        "Prices:\nitem: a\\|b; price: 2\nitem: c\nitem: d; price: 4; new\n\n| e | 5 |\n| f | 6 |"
    )
    assert with_named_cells("no table | at all") == "no table | at all"


def test_every_passage_of_a_long_table_has_its_columns_and_a_heading() -> None:
    """Sheets and CSV files alike; dates and numbers as text, empty rows left out."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Prices"
    sheet.append(["item", "price"])
    for n in range(100):
        sheet.append([f"thing number {n}", n * 1.5])
        sheet.append([None, None])
    book.create_sheet("Empty")
    text, _ = XlsxReader().read(saved(book))
    chunks = MarkdownChunker(ChunkOptions()).split(Document("prices.xlsx", text))
    tables = [chunk for chunk in chunks if "thing number" in chunk.text]
    assert len(tables) > 3
    assert all("| item | price |" in chunk.text for chunk in tables)
    assert tables[-1].heading.startswith("Prices > Rows ")
    assert tables[-1].heading.endswith("to 100")
    assert "| thing number 99 | 148.5 |" in tables[-1].text
    with (
        zipfile.ZipFile(io.BytesIO(saved(book))) as parts,
        zipfile.ZipFile(wrong := io.BytesIO(), "w") as out,
    ):
        for name in parts.namelist():  # some programs write the size of the sheet wrong
            out.writestr(name, parts.read(name).replace(b'ref="A1:B201"', b'ref="A1"'))
    assert XlsxReader().read(wrong.getvalue())[0] == text
    far = openpyxl.Workbook()
    far.active["A1"], far.active["XFD9"] = "here", "there"
    text, _ = XlsxReader().read(saved(far))
    assert text == "## Sheet\n\n| here |  |\n| --- | --- |\n|  | there |"
    far.active["A300000"] = "below"
    with pytest.raises(ValueError, match="more than 200000 cells"):
        XlsxReader().read(saved(far))
    wide, _ = CsvReader().read(b"a," * 20_000 + b"\n" + b"1\n" * 20_000)
    assert len(wide) < 500_000
    titled, _ = CsvReader().read(b"All\ntea,2\nx\n")
    assert titled == "| All |  |\n| --- | --- |\n| tea | 2 |\n| x |"
    short, _ = CsvReader().read('item;note\ntea;"a; b"\n'.encode("utf-8-sig"))
    assert short == "| item | note |\n| --- | --- |\n| tea | a; b |"


def test_definitions_of_source_code_have_headings() -> None:
    """With the comments and decorators above them, in any language; what is inside stays with them."""
    code = (
        "import os\n\nLIMIT = 3\n\n\n# how\n@cached\ndef steep(tea: str) -> int:\n    def inner(): ...\n"
        '    return 1\n\nclass Pot:\n    """A pot."""\n'
    )
    text, _ = CodeReader().read(code.encode())
    chunks = MarkdownChunker(ChunkOptions()).split(Document("tea.py", text))
    headings = [chunk.heading for chunk in chunks]
    assert headings == ["", "def steep(tea: str) -> int", "class Pot"]
    assert "# how\n@cached\ndef steep" in chunks[1].text
    assert "def inner" in chunks[1].text
    script, _ = CodeReader().read(b"export async function pour() {\n  return ~~~1;\n}\n")
    assert script.startswith("## export async function pour()\n\n~~~\n")


@pytest.mark.parametrize("reader", [DocxReader(), PptxReader(), XlsxReader(), CsvReader(), CodeReader()])
@pytest.mark.parametrize("data", [b"", b"\0\1\2", b"PK\3\4\0 nonsense", b"\xff\xfe\0"])
def test_what_cannot_be_read_is_refused_with_the_reason(reader: DocumentReader, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it (is|contains|has)"):
        reader.read(data)


def test_a_file_of_another_kind_or_without_text_is_refused() -> None:
    empty = saved(docx.Document())
    with pytest.raises(ValueError, match="no text"):
        DocxReader().read(empty)
    with pytest.raises(ValueError, match="not a readable Office file"):
        XlsxReader().read(empty)
    with pytest.raises(ValueError, match="not a readable CSV file"):
        CsvReader().read(b'item,note\ntea,"a quotation that does not end\n')
