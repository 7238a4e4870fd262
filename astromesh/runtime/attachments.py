"""What a request brings along, as models take it: fetched, checked, and text where no model reads the file.

Every door passes attachments through here before the run is accepted. What a model takes stays an attachment.
The text of other files stands below the message, so that the input rules check it as they check the message.
"""

from __future__ import annotations

import asyncio
import binascii
import mimetypes
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from astromesh.core.routing import no_audio
from astromesh.errors import AnswerTooLarge, InvalidInput, NetError, PayloadTooLarge
from astromesh.plugins import Deps, Plugins
from astromesh.runtime.agent import Agent
from astromesh.runtime.records import RunRequest, attachments_of
from astromesh.text import is_blank, quoted_name
from astromesh.types import Attachment, Message

#: of one request, its history included
MAX_ATTACHMENTS = 32
MAX_BYTES = 10_000_000
#: of all files whose text stands below messages
MAX_CHARACTERS = 500_000
#: what every provider that takes the kind accepts
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
AUDIO_TYPES = frozenset({"audio/wav", "audio/mpeg"})
PDF = "application/pdf"
_ALIASES = {
    "image/jpg": "image/jpeg", "audio/x-wav": "audio/wav", "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav", "audio/mp3": "audio/mpeg",
}  # fmt: skip
_PARAM = "attachments"
_FETCH_SECONDS = 20.0


class _Files(Struct, frozen=True):
    """The attachments of one message: those that stay, and the text of the others."""

    usable: tuple[Attachment, ...]
    texts: tuple[str, ...]

    def under(self, text: str) -> str:
        """Returns a message with the files. One without a text says what it brings along, as on channels."""
        if is_blank(text):
            text = "" if self.texts else " ".join(f"[{one.kind}]" for one in self.usable)
        return "\n\n".join(filter(None, (text, *self.texts)))


class AttachmentReader:
    """Reads the attachments of requests.

    Args:
        max_bytes: of one attachment (`limits.max_attachment_bytes`).
    """

    def __init__(self, deps: Deps, plugins: Plugins, max_bytes: int) -> None:
        self._http, self._plugins, self._max_bytes = deps.http, plugins, max_bytes

    async def read(self, agent: Agent, request: RunRequest) -> RunRequest:
        """Returns a request whose attachments have content that the agent's models take.

        Raises:
            InvalidInput: an attachment cannot be read, has a type that nothing reads, or cannot be fetched.
            PayloadTooLarge: it is larger than the limit.
            MissingExtra: what reads PDF files is not installed.
        """
        found = attachments_of(request)
        if not found:
            return request
        if len(found) > MAX_ATTACHMENTS:
            raise InvalidInput(f"A request may have at most {MAX_ATTACHMENTS} attachments.", param=_PARAM)
        own = await self._files(agent, request.attachments)
        texts, history = list(own.texts), request.history
        if history is not None:
            messages = []
            for message in history:
                files = await self._files(agent, message.attachments)
                texts += files.texts
                messages.append(_with_files(message, files))
            history = tuple(messages)
        if sum(map(len, texts)) > MAX_CHARACTERS:
            raise PayloadTooLarge(
                f"The attached files have more than {MAX_CHARACTERS} characters of text. Send a part of them."
            )
        return replace(request, query=own.under(request.query), attachments=own.usable, history=history)

    async def _files(self, agent: Agent, attachments: Sequence[Attachment]) -> _Files:
        if all(one.sha256 and one.data for one in attachments):  # they have been read
            return _Files(tuple(attachments), ())
        whole = await asyncio.gather(*map(self._fetched, attachments))
        return await asyncio.to_thread(self._sorted, agent, whole)

    def _sorted(self, agent: Agent, attachments: Sequence[Attachment]) -> _Files:
        # the rules read text: what they have to check must be text
        takes_files = agent.router.limits.files and not agent.guardrails.input_rules
        usable: list[Attachment] = []
        texts: list[str] = []
        for number, one in enumerate(attachments):
            data = self._bytes(one, number)
            kind = _media_type(one, data)
            if (kind.startswith("audio/") and kind not in AUDIO_TYPES) or (
                kind.startswith("image/") and kind not in IMAGE_TYPES
            ):
                types = ", ".join(sorted(IMAGE_TYPES | AUDIO_TYPES))
                raise InvalidInput(
                    f"{_label(one, number)}: {kind[:64]!r} is not supported. Use one of {types}.",
                    param=_PARAM,
                )
            if kind in IMAGE_TYPES | AUDIO_TYPES and kind != type_of(data):
                raise InvalidInput(f"{_label(one, number)} is not a file of the type {kind}.", param=_PARAM)
            if kind.startswith("audio/") and not agent.router.limits.audio:
                raise no_audio(agent.router.limits)
            if kind in IMAGE_TYPES or kind in AUDIO_TYPES or (kind == PDF and takes_files):
                usable.append(replace(one, url="", media_type=kind, sha256=sha256(data).hexdigest()))
            else:
                text = self._text_of_pdf(one, number, data) if kind == PDF else _text(one, number, data)
                name = quoted_name(one.name) if one.name else str(number + 1)
                fence = _fence_of(text)
                texts.append(f"File {name}:\n{fence}\n{text}\n{fence}")
        return _Files(tuple(usable), tuple(texts))

    async def _fetched(self, one: Attachment) -> Attachment:
        """Returns an attachment with its data: that of a data URL, or of the web."""
        if one.data or not one.url:
            return one
        if one.url.startswith("data:"):
            head, _, data = one.url.removeprefix("data:").partition(",")
            kind, *parameters = head.split(";")
            if "base64" not in parameters:
                raise InvalidInput("An attachment's data URL must be base64.", param=_PARAM)
            return replace(one, url="", data=data, media_type=kind or one.media_type)
        if not one.url.startswith(("https://", "http://")):
            raise InvalidInput(
                "An attachment's url must be an http(s) URL or a base64 data URL.", param=_PARAM
            )
        try:
            answer = await self._http.fetch_untrusted(
                "GET", one.url, timeout=_FETCH_SECONDS, limit=self._max_bytes
            )
        except AnswerTooLarge as error:
            raise PayloadTooLarge(self._too_large(one.name or "the file of the URL")) from error
        except NetError as error:
            raise InvalidInput(f"An attachment cannot be fetched: {error}", param=_PARAM) from error
        if answer.status != 200:
            host = urlsplit(one.url).hostname
            raise InvalidInput(
                f"An attachment cannot be fetched: {host} answers {answer.status}.", param=_PARAM
            )
        name = one.name or unquote(PurePosixPath(urlsplit(one.url).path).name)
        served = answer.headers.get("content-type", "").partition(";")[0].strip()
        kind = "" if served in ("application/octet-stream", "binary/octet-stream") else served
        return replace(
            one,
            url="",
            data=b64encode(answer.body).decode(),
            name=name[:256],
            media_type=kind or one.media_type,
        )

    def _bytes(self, one: Attachment, number: int) -> bytes:
        try:
            data = b64decode(one.data, validate=True)
        except (ValueError, binascii.Error):  # letters beyond ASCII, or no base64
            data = b""
        if not data:
            raise InvalidInput(f"{_label(one, number)}: data is not base64, or is empty.", param=_PARAM)
        if len(data) > self._max_bytes:
            raise PayloadTooLarge(self._too_large(_label(one, number)))
        return data

    def _too_large(self, what: str) -> str:
        return f"{what} has more than {self._max_bytes} bytes (limits.max_attachment_bytes)."

    def _text_of_pdf(self, one: Attachment, number: int, data: bytes) -> str:
        """Returns the text with a heading for each page."""
        reader: Any = self._plugins.load("readers", "pdf")()
        try:
            text, _ = reader.read(data)
        except ValueError as error:
            raise InvalidInput(f"{_label(one, number)} cannot be read: {error}.", param=_PARAM) from error
        return str(text)


def _media_type(one: Attachment, data: bytes) -> str:
    """Returns the type of an attachment: of images and audio that of their content, whatever they are called.

    Services refuse a picture that is not of the type that its request names.
    """
    kind = one.media_type.partition(";")[0].strip().lower() or mimetypes.guess_type(one.name)[0] or ""
    kind = _ALIASES.get(kind, kind)
    found = type_of(data)
    return found if found and kind in IMAGE_TYPES | AUDIO_TYPES | _UNKNOWN else kind


#: types that say nothing
_UNKNOWN = frozenset({"", "application/octet-stream", "binary/octet-stream"})
#: how files begin; in `RIFF` files, four bytes have their length
_BEGINNINGS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"\x89PNG"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"RIFF.{4}WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"ID3|\xff[\xe2-\xe7\xf2-\xff]"), "audio/mpeg"),
)


def type_of(data: bytes) -> str:
    """Returns the type of an image or of audio by how it begins; empty for anything else."""
    return next((kind for beginning, kind in _BEGINNINGS if beginning.match(data)), "")


def _text(one: Attachment, number: int, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = one.media_type[:64]
        raise InvalidInput(
            f"{_label(one, number)}{kind and f' ({kind})'} is not an image, audio, text or a PDF file. "
            "Extract its text first, e.g. with a RAG pipeline.",
            param=_PARAM,
        ) from error
    if "\0" in text:
        raise InvalidInput(
            f"{_label(one, number)} has a NUL character, which no text may have.", param=_PARAM
        )
    return text


def _fence_of(text: str) -> str:
    """Returns a fence that is longer than each in a text."""
    return "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))


def _label(one: Attachment, number: int) -> str:
    return f"The attachment {one.name!r}" if one.name else f"attachments.{number}"


def _with_files(message: Message, files: _Files) -> Message:
    if not message.attachments:
        return message
    return replace(message, content=files.under(message.content), attachments=files.usable)
