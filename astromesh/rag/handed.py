"""Documents that a caller hands in: what comes as a file becomes text. Everything here blocks."""

from __future__ import annotations

from dataclasses import replace

from astromesh.abc.rag import Document
from astromesh.errors import InvalidInput
from astromesh.rag.folder import MAX_READ_FILE, READERS, Readers, Unreadable, converted, decoded, titled


def as_text(document: Document, readers: Readers) -> Document:
    """The document as Markdown or plain text, with a title; what the caller says of it holds.

    Raises:
        InvalidInput: it is broken, too large, or not what its media type says.
        MissingExtra: it needs a reader that is not installed.
    """
    try:
        if document.media_type in READERS:
            return _read(document, readers)
        if document.data:
            document = replace(document, text=decoded(document.data), data=b"")
    except (ValueError, Unreadable) as error:
        raise InvalidInput(f"The document {document.id!r} cannot be read: {error}.") from error
    return titled(document)


def _read(document: Document, readers: Readers) -> Document:
    data = document.data or document.text.encode()
    if len(data) > MAX_READ_FILE:
        raise Unreadable(f"it has more than {MAX_READ_FILE} bytes")
    made = converted(document.id, *readers(READERS[document.media_type]).read(data))
    about = {**made.metadata, **document.metadata}
    return replace(made, title=document.title or made.title, metadata=about)
