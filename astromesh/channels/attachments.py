"""Attachments: what the agent receives of them (reliability.md S4, S8).

A picture reaches the agent as an image, a text document as text. For any other attachment the agent
receives a note that it exists. Each messenger fetches files in its own way.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple

import structlog

from astromesh.channels.base import PreparedMessage, ReceivedMessage
from astromesh.errors import AnswerTooLarge, ChannelError, NetError
from astromesh.net.http import HttpResponse
from astromesh.types import Image, JsonObject

_PICTURES = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})
_TEXTS = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
_NAMES: Mapping[str, str] = {
    "image": "a picture", "sticker": "a sticker", "audio": "an audio file", "video": "a video",
    "document": "a document",
}  # fmt: skip

log = structlog.get_logger("astromesh.channels")


class FetchedFile(NamedTuple):
    """A file, or why there is none."""

    data: bytes = b""
    missing: str = ""


class Attachments:
    """Makes what an agent gets of messages with attachments; subclasses implement `fetch`.

    Args:
        most_bytes: of one file.
        most_characters: of a text document, for the agent.
    """

    def __init__(self, most_bytes: int, most_characters: int) -> None:
        self.most_bytes, self.most_characters = most_bytes, most_characters

    async def fetch(self, id: str) -> FetchedFile:
        """A file by the id that its message names.

        Raises:
            NetError, ChannelError: it cannot be fetched; AnswerTooLarge: it has more than `most_bytes`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fetch().")

    async def prepare(self, message: ReceivedMessage) -> PreparedMessage:
        """The message with its attachment, or with a sentence that says what is not there and why."""
        attached = message.details.get("attachment")
        if not isinstance(attached, dict):
            return PreparedMessage(message.text, details=message.details)
        mime = str(attached["mime_type"]).partition(";")[0].strip().lower()
        is_text = mime.startswith("text/") or mime in _TEXTS
        if mime not in _PICTURES and not is_text:
            return self._told(message, mime, "Its content cannot be shown to you.")
        fetched = await self._fetched(str(attached["id"]))
        if fetched.missing:
            return self._told(message, mime, fetched.missing)
        if is_text:
            return self._with_text(message, mime, fetched.data)
        image = Image(data=b64encode(fetched.data).decode(), media_type=mime)
        told = self._told(message, mime, "It is attached.", len(fetched.data))
        return PreparedMessage(told.text, (image,), told.details)

    def _with_text(self, message: ReceivedMessage, mime: str, data: bytes) -> PreparedMessage:
        text = data.decode("utf-8", "replace").replace("\0", "")
        shown = text[: self.most_characters]
        cut = f" Only its first {len(shown)} characters are shown." if len(shown) < len(text) else ""
        told = self._told(message, mime, f"Its text follows.{cut}", len(data))
        return PreparedMessage(f"{told.text}\n{shown}", details=told.details)

    def _told(self, message: ReceivedMessage, mime: str, what: str, size: int = 0) -> PreparedMessage:
        attached = message.details["attachment"]
        name = "a voice message" if attached["voice"] else _NAMES.get(message.details["kind"], "a file")
        details = ", ".join(filter(None, (attached["filename"], mime, f"{size} bytes" if size else "")))
        note = f"[The user sent {name}{f' ({details})' if details else ''}. {what}]"
        caption = message.details.get("caption", "")
        seen: JsonObject = {**attached, "bytes": size, "available": bool(size), "note": what}
        del seen["id"]  # of no use to anybody without the access token
        about = {**message.details, "attachment": seen}
        return PreparedMessage(f"{note}\n{caption}" if caption else note, details=about)

    async def _fetched(self, id: str) -> FetchedFile:
        try:
            return await self.fetch(id)
        except AnswerTooLarge:
            return self.too_large()
        except (NetError, ChannelError) as error:
            log.warning("media_unavailable", error=str(error))
            return FetchedFile(missing="It could not be fetched.")

    def too_large(self) -> FetchedFile:
        return FetchedFile(missing=f"It is larger than {self.most_bytes} bytes and was not fetched.")


def file_of(answer: HttpResponse) -> FetchedFile:
    """Raises: ChannelError: the file is not there."""
    if answer.status != 200:
        raise ChannelError(f"A media file was answered with {answer.status}.")
    return FetchedFile(answer.body)
