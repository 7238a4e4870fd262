"""Images and files that a message brings along."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from astromesh.errors import InvalidInput
from astromesh.plugins import Plugins
from astromesh.types import Image


class File(NamedTuple):
    """A file in memory.

    Args:
        name: Its name; the ending says what it holds.
        data: Its content.
        media_type: e.g. `text/csv`. Empty: as the ending of the name says.
    """

    name: str
    data: bytes
    media_type: str = ""


PDF = "application/pdf"
#: a path, the URL of an image, an `Image`, or a `File`
Attachment: TypeAlias = "str | Path | Image | File"


async def with_attachments(
    query: str, attachments: Sequence[Attachment], plugins: Plugins
) -> tuple[str, tuple[Image, ...]]:
    """Returns the message with the text of the files below it, and the images.

    Raises:
        InvalidInput: A file cannot be read, or is neither an image, nor text, nor a PDF file with text.
        MissingExtra: What reads PDF files is not installed.
    """
    if not attachments:
        return query, ()
    return await asyncio.to_thread(_read_all, query, attachments, plugins)


def _read_all(
    query: str, attachments: Sequence[Attachment], plugins: Plugins
) -> tuple[str, tuple[Image, ...]]:
    images: list[Image] = []
    texts = [query]
    for one in attachments:
        if isinstance(one, Image):
            if not (one.url or one.data):
                raise InvalidInput("An Image among the attachments has neither a `url` nor `data`.")
            images.append(one)
        elif isinstance(one, str) and one.startswith(("http://", "https://")):
            images.append(Image(url=one))
        else:
            file = one if isinstance(one, File) else _read(Path(one))
            kind = file.media_type or mimetypes.guess_type(file.name)[0] or ""
            if kind.startswith("image/"):
                images.append(Image(data=base64.b64encode(file.data).decode(), media_type=kind))
            else:
                text = _text_of_pdf(file, plugins) if kind == PDF else _text_of(file, kind)
                texts.append(f"File {file.name}:\n```\n{text}\n```")
    return "\n\n".join(texts), tuple(images)


def _read(path: Path) -> File:
    try:
        return File(path.name, path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"The attachment {path} cannot be read: {error.strerror or error}.") from error


def _text_of(file: File, kind: str) -> str:
    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"The attachment {file.name!r}{kind and f' ({kind})'} is no image, no text and no PDF file. "
            "Extract its text first, e.g. with a RAG pipeline."
        ) from error
    return text


def _text_of_pdf(file: File, plugins: Plugins) -> str:
    """Returns the text with a heading for each page."""
    try:
        text, _ = plugins.load("readers", "pdf")().read(file.data)
    except ValueError as error:
        raise InvalidInput(f"The attachment {file.name!r} cannot be read: {error}.") from error
    return str(text)
