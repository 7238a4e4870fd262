"""Images and files that a message brings along, as Python programs write them."""

from __future__ import annotations

import asyncio
import mimetypes
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from astromesh.errors import InvalidInput
from astromesh.types import Attachment, Image


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


#: a path, a URL, an `Image`, or a `File`
AttachmentLike: TypeAlias = "str | Path | Image | File"


async def read_attachments(attachments: Sequence[AttachmentLike]) -> tuple[Attachment, ...]:
    """Returns attachments as records. Files are read; URLs are fetched when the run starts.

    Raises:
        InvalidInput: A file cannot be read, or an Image is empty.
    """
    if not attachments:
        return ()
    return await asyncio.to_thread(lambda: tuple(map(_attachment, attachments)))


def _attachment(one: AttachmentLike) -> Attachment:
    if isinstance(one, Attachment):
        if not (one.url or one.data):
            raise InvalidInput("An Image among the attachments has neither a `url` nor `data`.")
        return one
    if isinstance(one, str) and one.startswith(("http://", "https://", "data:")):
        return Attachment(url=one, media_type="")
    file = one if isinstance(one, File) else _read(Path(one))
    kind = file.media_type or mimetypes.guess_type(file.name)[0] or ""
    return Attachment(data=b64encode(file.data).decode(), media_type=kind, name=file.name)


def _read(path: Path) -> File:
    try:
        return File(path.name, path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"The attachment {path} cannot be read: {error.strerror or error}.") from error
