"""The common part of messengers: options, HTTP calls, attachments and readers of webhook JSON.

A picture reaches the agent as an image, a text document as text. For any other attachment the agent receives
a note that it exists.
"""

from __future__ import annotations

import hmac
import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Collection, Mapping
from typing import Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field
from yarl import URL

from astromesh.channels.base import PreparedMessage, ReceivedMessage
from astromesh.errors import AnswerTooLarge, ChannelError, InvalidInput, NetError
from astromesh.logs import get_logger
from astromesh.net.http import Http, HttpResponse
from astromesh.plugins import Deps
from astromesh.text import quoted_name
from astromesh.types import Attachment, JsonObject

#: characters of one message, counted as UTF-16 code units; the same at WhatsApp and Telegram
MAX_MESSAGE = 4096
#: limits of one call: seconds, and bytes of the answer
_TIMEOUT_SECONDS, _ANSWER_BYTES = 20.0, 1 << 20
_PICTURES = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})
_TEXTS = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
_NAMES: Mapping[str, str] = {
    "image": "a picture", "sticker": "a sticker", "audio": "an audio file", "video": "a video",
    "document": "a document",
}  # fmt: skip

log = get_logger("astromesh.channels")


class MessengerOptions(BaseModel):
    """Options of every messenger."""

    model_config = ConfigDict(extra="forbid")

    max_media_bytes: int = Field(5_000_000, ge=0, description="Larger attachments are not fetched.")
    max_text_characters: int = Field(
        20_000, ge=0, description="Characters of a text document that the agent receives."
    )
    unreadable_reply: str = Field(
        "Sorry, I can't read this kind of message yet. Please write it to me as text.",
        description="Answer to messages that cannot be read; empty for none.",
    )


class Messenger(ABC):
    """A `Channel` over HTTP. Subclasses implement the wire format of one messenger.

    Args:
        options: of the messenger.
        http: the shared session.
        headers: of every call.
        secret: keys for addresses are derived from it if the operator sets no `identity_key`.
        account: our address.
    """

    def __init__(
        self, options: MessengerOptions, http: Http, headers: Mapping[str, str], secret: str, account: str
    ) -> None:
        self._http = http
        self._headers = {"content-type": "application/json", **headers}
        self._max_bytes, self._max_characters = options.max_media_bytes, options.max_text_characters
        self.secret = secret
        self.addresses: Collection[str] = frozenset({account})
        self.unreadable_reply = options.unreadable_reply

    @classmethod
    async def open(cls, options: Any, deps: Deps) -> Self:
        return cls(options, deps.http)  # type: ignore[call-arg]  # constructors of subclasses take these two

    def split(self, text: str) -> tuple[str, ...]:
        return split_text(text, MAX_MESSAGE)

    async def close(self) -> None:  # noqa: B027 (nothing to close, no need to override it)
        """Does nothing: the HTTP session is shared."""

    async def _request(self, method: str, url: str, content: JsonObject | None = None) -> HttpResponse:
        """Calls the messenger's API. Raises: ChannelError: it does not answer."""
        body = None if content is None else orjson.dumps(content)
        try:
            return await self._http.request(
                method, url, body=body, headers=self._headers, timeout=_TIMEOUT_SECONDS, limit=_ANSWER_BYTES
            )
        except NetError as error:
            raise ChannelError(str(error)) from error

    # -- attachments ---------------------------------------------------------------------------------------

    @abstractmethod
    async def fetch(self, id: str) -> HttpResponse:
        """Fetches a file by the id in its message.

        Raises:
            NetError, ChannelError: it cannot be fetched. AnswerTooLarge: it is larger than the limit.
        """

    async def prepare(self, message: ReceivedMessage) -> PreparedMessage:
        """Returns the message with its attachment, or with a note that says what is missing and why."""
        attached = message.details.get("attachment")
        if not isinstance(attached, dict):
            return PreparedMessage(message.text, details=message.details)
        mime = str(attached["mime_type"]).partition(";")[0].strip().lower()
        is_text = mime.startswith("text/") or mime in _TEXTS
        if mime not in _PICTURES and not is_text:
            return _with_note(message, mime, "Its content cannot be shown to you.")
        try:
            answer = await self.fetch(str(attached["id"]))
            if answer.status != 200:
                raise ChannelError(f"The request for a media file was answered with {answer.status}.")
        except AnswerTooLarge:
            note = f"It is larger than {self._max_bytes} bytes and was not fetched."
            return _with_note(message, mime, note)
        except (NetError, ChannelError) as error:
            log.warning("media_unavailable", error=str(error))
            return _with_note(message, mime, "It could not be fetched.")
        if is_text:
            return self._with_text(message, mime, answer.body)
        image = Attachment(data=b64encode(answer.body).decode(), media_type=mime)
        noted = _with_note(message, mime, "It is attached.", len(answer.body))
        return PreparedMessage(noted.text, (image,), noted.details)

    def _with_text(self, message: ReceivedMessage, mime: str, data: bytes) -> PreparedMessage:
        text = data.decode("utf-8", "replace").replace("\0", "")
        excerpt = text[: self._max_characters]
        cut = f" Only its first {len(excerpt)} characters are shown." if len(excerpt) < len(text) else ""
        noted = _with_note(message, mime, f"Its text follows.{cut}", len(data))
        return PreparedMessage(f"{noted.text}\n{excerpt}", details=noted.details)

    async def _download(
        self, url: str | URL, size: Any, headers: Mapping[str, str], *, is_trusted: bool = True
    ) -> HttpResponse:
        """Fetches a file.

        Args:
            size: in bytes, as the messenger reports it.
            is_trusted: whether the host is the configured one; others are fetched through the forgery guard.
        """
        if isinstance(size, int) and size > self._max_bytes:
            raise AnswerTooLarge(f"The file has more than {self._max_bytes} bytes.")
        fetch = self._http.request if is_trusted else self._http.fetch_untrusted
        return await fetch("GET", url, headers=headers, timeout=_TIMEOUT_SECONDS, limit=self._max_bytes)


def _with_note(message: ReceivedMessage, mime: str, what: str, size: int = 0) -> PreparedMessage:
    """Returns a message with a note about its attachment. Args: size: in bytes; 0 if it was not fetched."""
    attached = message.details["attachment"]
    name = "a voice message" if attached["voice"] else _NAMES.get(message.details["kind"], "a file")
    file = quoted_name(attached["filename"]) if attached["filename"] else ""
    details = ", ".join(filter(None, (file, mime, f"{size} bytes" if size else "")))
    note = f"[The user sent {name}{f' ({details})' if details else ''}. {what}]"
    caption = message.details.get("caption", "")
    seen: JsonObject = {**attached, "bytes": size, "available": bool(size), "note": what}
    del seen["id"]  # useless without the access token
    about = {**message.details, "attachment": seen}
    return PreparedMessage(f"{note}\n{caption}" if caption else note, details=about)


def are_equal(received: str, expected: str) -> bool:
    """Compares in constant time, so that the time of an answer reveals nothing about a secret."""
    return hmac.compare_digest(received.encode(errors="replace"), expected.encode())


# -- webhook JSON ------------------------------------------------------------------------------------------
#
# It may have any shape. These readers return only what is documented.

#: most characters of a text, and of a name, in a webhook; messengers allow 4,096, and 1,024 in captions
MAX_TEXT, MAX_NAME = 16_384, 256


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses the body of a webhook.

    Raises:
        InvalidInput: it is not a JSON object.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The webhook is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidInput("The webhook is not a JSON object.")
    return found


def object_of(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def list_of(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(data: Mapping[str, Any], key: str, most: int = MAX_TEXT) -> str:
    value = data.get(key)
    return value[:most] if isinstance(value, str) else ""


def place_of(data: Mapping[str, Any]) -> tuple[float, float] | None:
    """Returns latitude and longitude in degrees, or None if one is missing."""
    place = data.get("latitude"), data.get("longitude")
    known = all(isinstance(n, int | float) and not isinstance(n, bool) for n in place)
    return place if known else None  # type: ignore[return-value]


# -- long replies ------------------------------------------------------------------------------------------


#: ends of sentences: after the mark and its closing quotes, before white space; the CJK ones need none
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？]")
#: where to cut, best first
_BREAKS = (re.compile(r"\n\s*\n"), _SENTENCE, re.compile(r"\n"), re.compile(r"\s"))
#: a cut that uses less than this share of the room is worse than one at the next kind of place
_MIN_SHARE = (0.6, 0.3, 0.3, 0.01)


def split_text(text: str, most: int) -> tuple[str, ...]:
    """Splits a text where a reader would pause, into pieces without white space at their ends.

    Args:
        most: characters of a piece as the messenger counts them: UTF-16 code units, two for most emoji.
    """
    pieces = []
    rest = text.strip()
    while rest:
        room = _characters_that_fit(rest, most)
        end = len(rest) if room >= len(rest) else _cut_position(rest, room)
        pieces.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return tuple(pieces)


def _cut_position(text: str, room: int) -> int:
    """Returns where to cut, at most at `room`."""
    for place, least in zip(_BREAKS, _MIN_SHARE, strict=True):
        ends = [found.end() for found in place.finditer(text, 0, room + 1) if found.end() <= room]
        if ends and ends[-1] >= room * least:
            return ends[-1]
    return room


def _characters_that_fit(text: str, most: int) -> int:
    """Returns how many characters of a text fit into `most` UTF-16 code units; at least one."""
    if len(text) * 2 <= most:
        return len(text)
    head = text[:most].encode("utf-16-le", "surrogatepass")[: most * 2]
    return max(len(head.decode("utf-16-le", "ignore")), 1)
