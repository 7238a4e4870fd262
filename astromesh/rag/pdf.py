"""PDF files as Markdown: each page under a heading `Page N`, so that a passage says where it stands."""

from __future__ import annotations

import io
import re
import struct
import zlib

from pypdf import PdfReader as File
from pypdf.errors import PyPdfError

from astromesh.types import JsonObject

#: what pypdf raises on files that are not as they should be
_BROKEN = (
    PyPdfError, ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, OSError,
    RecursionError, TypeError, ValueError, struct.error, zlib.error,
)  # fmt: skip
#: a word that a line break cut in two
_CUT_WORD = re.compile(r"(?<=[a-zß-ÿ])-\n(?=[a-zß-ÿ])")
_LIKE_HEADING = re.compile(r"^(#{1,6}\s)", re.MULTILINE)


class PdfReader:
    """The reader `pdf`."""

    fingerprint = "pdf/1"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        try:
            file = File(io.BytesIO(data))
            if file.is_encrypted and not file.decrypt(""):
                raise ValueError("it is encrypted")
            pages = [page.extract_text() for page in file.pages]
            about = {"title": file.metadata.title, "author": file.metadata.author} if file.metadata else {}
        except _BROKEN as error:
            raise ValueError(f"it is no PDF file that can be read: {error}") from error
        text = "\n\n".join(_page(number, page) for number, page in enumerate(pages, 1) if page.strip())
        if not text:
            raise ValueError("it holds no text; scanned pages need text recognition first")
        return text, {key: str(value).strip() for key, value in about.items() if value}


def _page(number: int, text: str) -> str:
    body = _LIKE_HEADING.sub(r"\\\1", _CUT_WORD.sub("", text)).strip()
    # half of a surrogate pair is no character that a store could keep
    return f"# Page {number}\n\n{body.encode('utf-8', 'replace').decode()}"
