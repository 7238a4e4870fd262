"""Attachments: what the agent gets of them, and how they are fetched (reliability.md S4, S8).

A picture reaches the agent as an image, a text document as text; of everything else it is told that it is
there. The Graph API names the address of a file: unless that is the Graph API itself it is called by way of
the forgery guard, and the access token goes to hosts of Meta alone.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import structlog
from yarl import URL

from astromesh.abc.channel import Inbound, Prepared
from astromesh.errors import AnswerTooLarge, ChannelError, NetError
from astromesh.net.http import Answer, Http
from astromesh.types import Image, JsonObject

_PICTURES = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})
_TEXTS = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
#: what Meta keeps files at
_HOSTS = ("facebook.com", "fbsbx.com", "fbcdn.net", "whatsapp.net", "whatsapp.com")
_PATIENCE, _ANSWER_BYTES = 20.0, 1 << 20
_NAMES: Mapping[str, str] = {
    "image": "a picture", "sticker": "a sticker", "audio": "an audio file", "video": "a video",
    "document": "a document",
}  # fmt: skip

log = structlog.get_logger("astromesh.channels")


class Fetched(NamedTuple):
    """A file, or why there is none."""

    data: bytes = b""
    missing: str = ""


class Media:
    """Fetches attachments.

    Args:
        base: of the Graph API, which the operator wrote.
        headers: with the access token.
        most_bytes: of one file.
        most_characters: of a text document, for the agent.
    """

    def __init__(
        self, http: Http, base: str, headers: Mapping[str, str], most_bytes: int, most_characters: int
    ) -> None:
        self._http, self._base = http, base
        self._headers = {"authorization": headers["authorization"]}
        self._most_bytes, self._most_characters = most_bytes, most_characters

    async def prepare(self, message: Inbound) -> Prepared:
        """The message with its attachment, or with a sentence that says what is not there and why."""
        attached = message.about.get("attachment")
        if not isinstance(attached, dict):
            return Prepared(message.text, about=message.about)
        mime = str(attached["mime_type"]).partition(";")[0].strip().lower()
        is_text = mime.startswith("text/") or mime in _TEXTS
        if mime not in _PICTURES and not is_text:
            return self._told(message, mime, "Its content cannot be shown to you.")
        fetched = await self._fetch(str(attached["id"]))
        if fetched.missing:
            return self._told(message, mime, fetched.missing)
        if is_text:
            return self._with_text(message, mime, fetched.data)
        image = Image(data=b64encode(fetched.data).decode(), media_type=mime)
        told = self._told(message, mime, "It is attached.", len(fetched.data))
        return Prepared(told.text, (image,), told.about)

    def _with_text(self, message: Inbound, mime: str, data: bytes) -> Prepared:
        text = data.decode("utf-8", "replace").replace("\0", "")
        shown = text[: self._most_characters]
        cut = f" Only its first {len(shown)} characters are shown." if len(shown) < len(text) else ""
        told = self._told(message, mime, f"Its text follows.{cut}", len(data))
        return Prepared(f"{told.text}\n{shown}", about=told.about)

    def _told(self, message: Inbound, mime: str, what: str, size: int = 0) -> Prepared:
        attached = message.about["attachment"]
        name = "a voice message" if attached["voice"] else _NAMES.get(message.about["kind"], "a file")
        details = ", ".join(filter(None, (attached["filename"], mime, f"{size} bytes" if size else "")))
        note = f"[The user sent {name}{f' ({details})' if details else ''}. {what}]"
        caption = message.about.get("caption", "")
        seen: JsonObject = {**attached, "bytes": size, "available": bool(size), "note": what}
        del seen["id"]  # of no use to anybody without the access token
        about = {**message.about, "attachment": seen}
        return Prepared(f"{note}\n{caption}" if caption else note, about=about)

    async def _fetch(self, id: str) -> Fetched:
        try:
            return await self._file(id)
        except AnswerTooLarge:
            return self._too_large()
        except (NetError, ChannelError) as error:
            log.warning("media_unavailable", error=str(error))
            return Fetched(missing="It could not be fetched.")

    async def _file(self, id: str) -> Fetched:
        url = f"{self._base}/{quote(id, safe='')}"
        found = await self._http.request(
            "GET", url, headers=self._headers, timeout=_PATIENCE, limit=_ANSWER_BYTES
        )
        about = _object(found)
        size = about.get("file_size")
        if isinstance(size, int) and size > self._most_bytes:
            return self._too_large()
        answer = await self._download(str(about.get("url", "")))
        return answered(answer)

    async def _download(self, address: str) -> Answer:
        try:
            url = URL(address)
            host, origin = url.host or "", url.origin()
        except ValueError as error:
            raise ChannelError("The Graph API named no address of a media file.") from error
        if origin == URL(self._base).origin():
            return await self._http.request(
                "GET", url, headers=self._headers, timeout=_PATIENCE, limit=self._most_bytes
            )
        known = url.scheme == "https" and any(host == h or host.endswith(f".{h}") for h in _HOSTS)
        return await self._http.fetch_untrusted(
            "GET", url, headers=self._headers if known else {}, timeout=_PATIENCE, limit=self._most_bytes
        )

    def _too_large(self) -> Fetched:
        return Fetched(missing=f"It is larger than {self._most_bytes} bytes and was not fetched.")


def answered(answer: Answer) -> Fetched:
    """Raises: ChannelError: the file is not there."""
    if answer.status != 200:
        raise ChannelError(f"A media file was answered with {answer.status}.")
    return Fetched(answer.body)


def _object(answer: Answer) -> JsonObject:
    """Raises: ChannelError: it is none, or an error."""
    try:
        found = answer.json()
    except ValueError as error:
        raise ChannelError("The Graph API answered something that is not JSON.") from error
    if answer.status != 200 or not isinstance(found, dict):
        raise ChannelError(f"The Graph API answered {answer.status} for a media file.")
    return found
