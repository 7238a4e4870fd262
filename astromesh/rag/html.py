"""Web pages as Markdown: headings, paragraphs, lists, tables and code; menus, scripts and forms left out.

The text is what chunks are cut from: a chunk's offsets are offsets into it, not into the page's source.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode

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
#: what stands before a tag's text, beside blocks and headings
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
        page = LexborHTMLParser(_decoded(data))
        title = page.css_first("title")
        about = {"title": _SPACES.sub(" ", title.text()).strip()} if title is not None else {}
        for node in page.css(_LEFT_OUT):
            node.decompose()
        mains = page.css(_MAIN)
        root = mains[0] if len(mains) == 1 else page.body
        if root is None:
            raise ValueError("it holds no page")
        return _text(root), {key: value for key, value in about.items() if value}


def _decoded(data: bytes) -> str:
    """By its byte order mark, its <meta>, as UTF-8, else as windows-1252, in which nothing is wrong."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    said = _CHARSET.search(data[:2048])
    for encoding in (said[1].decode("ascii") if said else "", "utf-8"):
        try:
            return data.decode(encoding)
        except (LookupError, UnicodeDecodeError):
            pass
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
    """Text in order, and whether it stands as it is; a stack instead of recursion: pages can be deep."""
    waiting: list[LexborNode | str] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node, False
        elif node.is_text_node:
            yield _SPACES.sub(" ", _LIKE_HEADING.sub(r"\\\1", node.text_content or "")), False
        elif node.tag == "pre":
            yield node.text(), True
        else:
            tag = node.tag or ""
            around = "\n\n" if tag in _BLOCKS or tag in _HEADINGS else ""
            yield around + _HEADINGS.get(tag, "") + _BEFORE.get(tag, ""), False
            waiting.append(around)
            waiting += reversed(list(node.iter(include_text=True)))
