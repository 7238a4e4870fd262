"""Telegram by the webhooks of the Bot API (core.telegram.org/bots/api; docs/telegram.md).

Only messages of private chats are answered.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from astromesh.channels.attachments import Attachments, FetchedFile, file_of
from astromesh.channels.base import (
    ConversationAddress,
    PreparedMessage,
    ReceivedMessage,
    WebhookContent,
    WebhookRequest,
)
from astromesh.channels.message_text import (
    MAX_NAME,
    list_of,
    object_of,
    parse_object,
    place_of,
    split_text,
    text_of,
)
from astromesh.errors import ChannelError, ChannelRejected, Forbidden, InvalidInput, NetError, Unauthorized
from astromesh.net.http import Http, HttpResponse
from astromesh.plugins import Deps
from astromesh.types import JsonObject

#: characters of one message, counted as UTF-16 code units
MOST_CHARACTERS = 4096
#: seconds one call of the Bot API may take, and bytes it may answer
_TIMEOUT_SECONDS, _ANSWER_BYTES = 20.0, 1 << 20
#: codes that pass by themselves: limits, and a token that is wrong until the operator renews it
_TEMPORARY_CODES = frozenset({401, 404, 409, 429})
#: attachments by the message's key: how the agent is told of them, and their type where Telegram says none
_FILES: Mapping[str, tuple[str, str]] = {
    "document": ("document", "application/octet-stream"), "voice": ("audio", "audio/ogg"),
    "audio": ("audio", "audio/mpeg"), "video": ("video", "video/mp4"), "video_note": ("video", "video/mp4"),
    "animation": ("video", "video/mp4"), "sticker": ("sticker", "image/webp"),
}  # fmt: skip


class TelegramOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bot_token: SecretStr = Field(min_length=1, description="Token of the bot, from BotFather.")
    secret_token: SecretStr = Field(min_length=1, description="What setWebhook was told as secret_token.")
    api_base: str = Field("https://api.telegram.org", min_length=1, description="The Bot API.")
    max_media_bytes: int = Field(5_000_000, ge=0, description="Larger attachments are not fetched.")
    max_text_characters: int = Field(
        20_000, ge=0, description="Of a text document, so many characters are shown to the agent."
    )
    typing: bool = Field(True, description="Show that we are typing.")
    unreadable_reply: str = Field(
        "Sorry, I can't read this kind of message yet. Please write it to me as text.",
        description="Answer to what cannot be read; empty for none.",
    )

    @field_validator("secret_token")
    @classmethod
    def _as_telegram_takes_it(cls, secret: SecretStr) -> SecretStr:
        if not re.fullmatch(r"[A-Za-z0-9_-]{16,256}", secret.get_secret_value()):
            raise ValueError("has 16 to 256 of A-Z, a-z, 0-9, _ and -")
        return secret


class Telegram:
    """One bot."""

    Options: ClassVar[type[BaseModel]] = TelegramOptions

    def __init__(self, options: TelegramOptions, http: Http) -> None:
        token = options.bot_token.get_secret_value()
        base = options.api_base.rstrip("/")
        self._options, self._http = options, http
        self._base = f"{base}/bot{token}"
        self._files = _Files(http, self._base, f"{base}/file/bot{token}", options)
        self._ours = token.partition(":")[0]
        self.secret = token
        self.addresses = frozenset({self._ours})
        self.unreadable_reply = options.unreadable_reply

    @classmethod
    async def open(cls, options: TelegramOptions, deps: Deps) -> Self:
        return cls(options, deps.http)

    # -- what comes in ---------------------------------------------------------------------------------------

    def challenge(self, request: WebhookRequest) -> str:
        raise Forbidden("Telegram asks no webhook whose it is; setWebhook names it.")

    def verify(self, request: WebhookRequest) -> None:
        """`X-Telegram-Bot-Api-Secret-Token`: Telegram signs nothing, it says what it was told."""
        given = request.headers.get("x-telegram-bot-api-secret-token", "").encode(errors="replace")
        if not hmac.compare_digest(given, self._options.secret_token.get_secret_value().encode()):
            raise Unauthorized("The webhook lacks this bot's X-Telegram-Bot-Api-Secret-Token.")

    def parse(self, body: bytes) -> WebhookContent:
        update = parse_object(body)
        if not _is_id(update.get("update_id")):
            raise InvalidInput("The webhook is not an update of the Bot API.")
        read = self._message(update)
        return WebhookContent((read,) if read is not None else ())

    def _message(self, update: Mapping[str, Any]) -> ReceivedMessage | None:
        pressed = object_of(update, "callback_query")
        message = object_of(pressed, "message") if pressed else object_of(update, "message")
        chat = object_of(message, "chat")
        if chat.get("type") != "private" or not _is_id(chat.get("id")):
            return None
        text, about = _button(pressed) if pressed else _content(message)
        about["profile_name"] = text_of(chat, "first_name", MAX_NAME)
        about["sent_at"] = str(message["date"]) if _is_id(message.get("date")) else ""
        address = ConversationAddress(self._ours, str(chat["id"]))
        return ReceivedMessage(
            str(update["update_id"]), address, text, "message" if text else "unreadable", about
        )

    async def prepare(self, message: ReceivedMessage) -> PreparedMessage:
        return await self._files.prepare(message)

    # -- what goes out ---------------------------------------------------------------------------------------

    async def acknowledge(self, message: ReceivedMessage) -> None:
        if self._options.typing:
            await self._call("sendChatAction", {"chat_id": message.address.user, "action": "typing"})

    def split(self, text: str) -> tuple[str, ...]:
        return split_text(text, MOST_CHARACTERS)

    async def send(self, address: ConversationAddress, text: str) -> str:
        quiet = {"is_disabled": True}
        said = {"chat_id": address.user, "text": text, "link_preview_options": quiet}
        answer = await self._call("sendMessage", said)
        return f"{address.user}/{object_of(answer, 'result').get('message_id', '')}"

    async def ask_to_reply(self, address: ConversationAddress) -> str:
        raise ChannelRejected("Telegram has no window in which one may answer.")

    async def close(self) -> None:
        """Nothing: the HTTP session is shared."""

    async def _call(self, method: str, content: JsonObject) -> JsonObject:
        try:
            answer = await self._http.request(
                "POST", f"{self._base}/{method}", body=orjson.dumps(content),
                headers={"content-type": "application/json"}, timeout=_TIMEOUT_SECONDS, limit=_ANSWER_BYTES,
            )  # fmt: skip
        except NetError as error:
            raise ChannelError(str(error)) from error
        return _require_success(answer)


class _Files(Attachments):
    """Attachments: `getFile` names a path, which is fetched below `/file/`."""

    def __init__(self, http: Http, base: str, files: str, options: TelegramOptions) -> None:
        super().__init__(options.max_media_bytes, options.max_text_characters)
        self._http, self._base, self._files = http, base, files

    async def fetch(self, id: str) -> FetchedFile:
        url = f"{self._base}/getFile?file_id={quote(id, safe='')}"
        found = await self._http.request("GET", url, timeout=_TIMEOUT_SECONDS, limit=_ANSWER_BYTES)
        about = object_of(_require_success(found), "result")
        size, path = about.get("file_size"), text_of(about, "file_path")
        if isinstance(size, int) and size > self.most_bytes:
            return self.too_large()
        if not path or ".." in path:
            raise ChannelError("The Bot API named no path of a file.")
        answer = await self._http.request(
            "GET", f"{self._files}/{quote(path)}", timeout=_TIMEOUT_SECONDS, limit=self.most_bytes
        )
        return file_of(answer)


# -- messages ------------------------------------------------------------------------------------------------


def _button(pressed: Mapping[str, Any]) -> tuple[str, JsonObject]:
    return text_of(pressed, "data"), {"kind": "button", "reply_id": text_of(pressed, "data", MAX_NAME)}


def _content(message: Mapping[str, Any]) -> tuple[str, JsonObject]:
    """What the agent is asked, and what else is known."""
    if text := text_of(message, "text"):
        return text, {"kind": "text"}
    if photos := list_of(message, "photo"):  # the same in several sizes, the largest last
        return _attachment(message, "image", photos[-1], "image/jpeg")
    for key, (kind, mime) in _FILES.items():
        if file := object_of(message, key):
            return _attachment(message, kind, file, mime, voice=key == "voice")
    if (where := place_of(object_of(message, "location"))) is not None:
        about = {"kind": "location", "latitude": where[0], "longitude": where[1]}
        return f"[The user sent a location: ({where[0]}, {where[1]})]", about
    return "", {"kind": "unknown"}


def _attachment(
    message: Mapping[str, Any], kind: str, file: Mapping[str, Any], mime: str, *, voice: bool = False
) -> tuple[str, JsonObject]:
    attached = {
        "id": text_of(file, "file_id", MAX_NAME),
        "mime_type": text_of(file, "mime_type", MAX_NAME) or mime,
        "filename": text_of(file, "file_name", MAX_NAME),
        "voice": voice,
    }
    caption = text_of(message, "caption")
    return caption or f"[{kind}]", {"kind": kind, "caption": caption, "attachment": attached}


def _require_success(answer: HttpResponse) -> JsonObject:
    """The body of an answer that says yes. Raises: ChannelError: of the right kind."""
    try:
        body = answer.json()
    except orjson.JSONDecodeError:
        body = None
    if answer.status < 300 and isinstance(body, dict) and body.get("ok") is True:
        return body
    said = f"The Bot API answered {answer.status}."
    if answer.status in _TEMPORARY_CODES or answer.status >= 500 or answer.status < 300:
        pause = object_of(body, "parameters").get("retry_after") if isinstance(body, dict) else None
        raise ChannelError(said, float(pause) if isinstance(pause, int) and 0 < pause < 100_000 else 0.0)
    raise ChannelRejected(said)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
