"""Readers of file formats: HTML and PDF as Markdown.

Of web pages, headings, paragraphs, lists, tables and code stay; menus, scripts and forms are left out. Chunks
are cut from the Markdown: their offsets are offsets into it, not into the page's source. Each page of a PDF
file stands under a heading `Page N` below the file's title, so that a passage names both.
"""

from __future__ import annotations

import codecs
import io
import logging
import re
import struct
import zlib
from collections.abc import Iterator

from pypdf import PdfReader as File
from pypdf.errors import PyPdfError
from selectolax.lexbor import LexborHTMLParser, LexborNode

from astromesh.knowledge.loaders import decode_declared
from astromesh.types import JsonObject

_LEFT_OUT = (
    "script, style, noscript, template, svg, canvas, iframe, object, nav, footer, aside, form, button,"
    " select, dialog, [hidden], [aria-hidden=true], [role=navigation]"
)
_MAIN = "main, [role=main], article"
_BLOCKS = frozenset((
    "address", "article", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "header", "hr", "main", "ol", "p", "section", "summary", "table", "ul",
))  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
#: text before a tag's text, beside blocks and headings
_BEFORE = {"li": "\n- ", "tr": "\n", "td": " | ", "th": " | ", "br": "\n"}
_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:-]+)", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_SPACES = re.compile(r"[ \t\r\n\f]+")
_AROUND_LINES = re.compile(r"[ \t]*\n[ \t]*")
_EMPTY_LINES = re.compile(r"\n{3,}")
_FIRST_CELL = re.compile(r"^ ?\| ", re.MULTILINE)
_LIKE_HEADING = re.compile(r"^(#{1,6}\s)", re.MULTILINE)


class HtmlReader:
    """The reader `html`."""

    fingerprint = "html/1"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        page = LexborHTMLParser(bounded_page(_decode(data)))
        title = page.css_first("title")
        metadata = {"title": _SPACES.sub(" ", title.text()).strip()} if title is not None else {}
        for node in page.css(_LEFT_OUT):
            node.decompose()
        mains = page.css(_MAIN)
        root = mains[0] if len(mains) == 1 else page.body
        if root is None:
            raise ValueError("it contains no page")
        return _text(root), {key: value for key, value in metadata.items() if value}


def _decode(data: bytes) -> str:
    """Decodes by the byte order mark, by <meta>, as UTF-8, else as windows-1252, which accepts any byte."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    declared = _CHARSET.search(data[:2048])
    for encoding in (declared[1].decode("ascii") if declared else "", "utf-8"):
        if (text := decode_declared(data, encoding)) is not None:
            return text
    return data.decode("cp1252", "replace")


def _text(root: LexborNode) -> str:
    plain: list[str] = []
    parts: list[str] = []
    for piece, verbatim in _pieces(root):
        if verbatim:
            code = piece.strip("\n")
            parts += (_tidy("".join(plain)), f"```\n{code}\n```" if code.strip() else "")
            plain = []
        else:
            plain.append(piece)
    parts.append(_tidy("".join(plain)))
    return "\n\n".join(filter(None, parts))


def _tidy(text: str) -> str:
    text = _AROUND_LINES.sub("\n", text)
    return _FIRST_CELL.sub("", _EMPTY_LINES.sub("\n\n", text)).strip()


def _pieces(root: LexborNode) -> Iterator[tuple[str, bool]]:
    """Yields texts in order, and whether each is verbatim. A stack replaces recursion: pages can be deep."""
    waiting: list[LexborNode | str] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node, False
        elif node.is_text_node:
            text = node.text_content or ""
            yield _SPACES.sub(" ", _LIKE_HEADING.sub(r"\\\1", text) if "#" in text else text), False
        elif node.tag == "pre":
            yield node.text(), True
        else:
            tag = node.tag or ""
            around = "\n\n" if tag in _BLOCKS or tag in _HEADINGS else ""
            yield around + _HEADINGS.get(tag, "") + _BEFORE.get(tag, ""), False
            waiting.append(around)
            waiting += reversed(list(node.iter(include_text=True)))


# -- PDF -----------------------------------------------------------------------------------------------------

# what it says of broken files reaches programs that listen, else nobody
logging.getLogger("pypdf").addHandler(logging.NullHandler())

#: errors that pypdf raises for broken files
_BROKEN = (
    PyPdfError, ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, OSError,
    RecursionError, TypeError, ValueError, struct.error, zlib.error,
)  # fmt: skip
#: a word that a line break cut in two
_CUT_WORD = re.compile(r"(?<=[a-zß-ÿ])-\n(?=[a-zß-ÿ])")


class PdfReader:
    """The reader `pdf`."""

    fingerprint = "pdf/2"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        try:
            file = File(io.BytesIO(data))
            if file.is_encrypted and not file.decrypt(""):
                raise ValueError("it is encrypted")
            pages = [page.extract_text() for page in file.pages]
            metadata = {"title": file.metadata.title, "author": file.metadata.author} if file.metadata else {}
        except _BROKEN as error:
            raise ValueError(f"it is not a readable PDF file: {error}") from error
        found = [_page(number, page) for number, page in enumerate(pages, 1) if page.strip()]
        if not found:
            raise ValueError("it contains no text; scanned pages need text recognition first")
        known = {key: text for key, value in metadata.items() if (text := _line(str(value or "")))}
        heading = [f"# {known['title']}"] if "title" in known else []
        return "\n\n".join([*heading, *found]), known


def _page(number: int, text: str) -> str:
    body = _LIKE_HEADING.sub(r"\\\1", _CUT_WORD.sub("", text)).strip()
    return f"## Page {number}\n\n{_storable(body)}"


def _line(text: str) -> str:
    return " ".join(_storable(text).split())


def _storable(text: str) -> str:
    """Returns a text without halves of surrogate pairs, which stores reject."""
    return text.encode("utf-8", "replace").decode()


# -- pages that a parser reads in linear time ----------------------------------------------------------------


#: open elements; Chromium flattens pages beyond 512
MAX_DEPTH = 128
#: open formatting elements, options of a page, words in one tag
MAX_FORMATTING, MAX_OPTIONS, MAX_WORDS = 32, 1000, 256

_TAG = re.compile(r"<!--|<(/?)([a-zA-Z][^\s/>]*+)[^>]*+>")
_FORMATTING = frozenset(
    ("a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u")
)
_OPTIONS = frozenset(("option", "optgroup"))
#: elements in which every tag without a slash opens an element
_FOREIGN = frozenset(("svg", "math"))
#: elements that have no end tag, or that end where the next one begins
_NOT_OPEN = _OPTIONS | frozenset((
    "area", "base", "br", "col", "colgroup", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "p", "param", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track", "wbr",
))  # fmt: skip
#: elements whose content has no tags
_TEXT = ("iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp")
_TEXT_ENDS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in _TEXT}


def bounded_page(page: str) -> str:
    """Returns a page that a parser reads in linear time: itself if it is within the limits."""
    if page.count("<") <= MAX_FORMATTING and len(page) <= MAX_WORDS:
        return page
    parts: list[str] = []
    position = 0
    for start, end, replacement in _replacements(page):
        parts += (page[position:start], replacement)
        position = end
    return "".join((*parts, page[position:])) if parts else page


def _replacements(page: str) -> Iterator[tuple[int, int, str]]:
    """Yields the tags beyond the limits: start, end, and what stands there instead."""
    stack: list[str] = []
    formatting = options = foreign = 0
    for start, end, closes, name in _tags(page):
        is_long = end - start > MAX_WORDS and len(page[start:end].split(None, MAX_WORDS)) > MAX_WORDS
        replacement = f"<{name}>" if is_long else None
        if closes:
            for closed in _close(stack, name):
                formatting -= closed in _FORMATTING
                foreign -= closed in _FOREIGN
        elif name in _OPTIONS:
            options += 1
            if options > MAX_OPTIONS:
                replacement = " "
        elif page[end - 2] != "/" if foreign else name not in _NOT_OPEN:
            is_formatting = name in _FORMATTING
            if len(stack) >= MAX_DEPTH or (is_formatting and formatting >= MAX_FORMATTING):
                replacement = " "
            else:
                stack.append(name)
                formatting += is_formatting
                foreign += name in _FOREIGN
        if replacement is not None:
            yield start, end, replacement


def _close(stack: list[str], name: str) -> list[str]:
    """Closes the innermost element of a name, and what is open in it. Returns their names.

    A formatting element closes alone, as in the standard.
    """
    place = next((n for n in reversed(range(len(stack))) if stack[n] == name), None)
    if place is None:
        return []
    end = place + 1 if name in _FORMATTING else len(stack)
    closed = stack[place:end]
    del stack[place:end]
    return closed


def _tags(page: str) -> Iterator[tuple[int, int, bool, str]]:
    """Yields start, end, whether it closes, and the name of each tag outside comments and scripts."""
    place, last = 0, page.rfind(">") + 1  # a tag that does not end would be searched again and again
    while (found := _TAG.search(page, place, last)) is not None:
        place = found.end()
        if found[2] is None:
            place = page.find("-->", place)
            if place < 0:
                return
            continue
        name = found[2].lower()
        yield found.start(), place, bool(found[1]), name
        if name in _TEXT and not found[1]:
            text_end = _TEXT_ENDS[name].search(page, place)
            if text_end is None:
                return
            place = text_end.start()
