"""Telegram by the webhooks of the Bot API (core.telegram.org/bots/api; docs/telegram.md).

Only messages of private chats are answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote

import orjson
from pydantic import BaseModel, Field, SecretStr, field_validator

from astromesh.channels.base import ConversationAddress, ReceivedMessage, WebhookContent, WebhookRequest
from astromesh.channels.messenger import (
    MAX_NAME,
    Messenger,
    MessengerOptions,
    are_equal,
    list_of,
    object_of,
    parse_object,
    place_of,
    text_of,
)
from astromesh.errors import ChannelError, ChannelRejected, Forbidden, InvalidInput, Unauthorized
from astromesh.net.http import Http, HttpResponse
from astromesh.types import JsonObject

#: codes of temporary errors: limits, and a token that is wrong until the operator renews it
_TEMPORARY_CODES = frozenset({401, 404, 409, 429})
#: attachments by the message's key: their kind, and their type if Telegram names none
_FILES: Mapping[str, tuple[str, str]] = {
    "document": ("document", "application/octet-stream"), "voice": ("audio", "audio/ogg"),
    "audio": ("audio", "audio/mpeg"), "video": ("video", "video/mp4"), "video_note": ("video", "video/mp4"),
    "animation": ("video", "video/mp4"), "sticker": ("sticker", "image/webp"),
}  # fmt: skip


class TelegramOptions(MessengerOptions):
    bot_token: SecretStr = Field(min_length=1, description="Token of the bot, from BotFather.")
    secret_token: SecretStr = Field(min_length=1, description="The `secret_token` that setWebhook was sent.")
    api_base: str = Field("https://api.telegram.org", min_length=1, description="The Bot API.")
    typing: bool = Field(True, description="Show the person that an answer is being written.")

    @field_validator("secret_token")
    @classmethod
    def _is_allowed(cls, secret: SecretStr) -> SecretStr:
        if not re.fullmatch(r"[A-Za-z0-9_-]{16,256}", secret.get_secret_value()):
            raise ValueError("must have 16 to 256 of the characters A-Z, a-z, 0-9, _ and -")
        return secret


class Telegram(Messenger):
    """One bot."""

    Options: ClassVar[type[BaseModel]] = TelegramOptions

    def __init__(self, options: TelegramOptions, http: Http) -> None:
        token = options.bot_token.get_secret_value()
        self._account = token.partition(":")[0]
        super().__init__(options, http, {}, token, self._account)
        base = options.api_base.rstrip("/")
        self._base, self._files = f"{base}/bot{token}", f"{base}/file/bot{token}"
        self._secret_token = options.secret_token.get_secret_value()
        self._shows_typing = options.typing

    # -- incoming ---------------------------------------------------------------------------------------

    def challenge(self, request: WebhookRequest) -> str:
        raise Forbidden("Telegram sends no verification request. Register the webhook with setWebhook.")

    def verify(self, request: WebhookRequest) -> None:
        """Checks `X-Telegram-Bot-Api-Secret-Token`; Telegram signs no webhooks."""
        if not are_equal(request.headers.get("x-telegram-bot-api-secret-token", ""), self._secret_token):
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
        address = ConversationAddress(self._account, str(chat["id"]))
        return ReceivedMessage(
            str(update["update_id"]), address, text, "message" if text else "unreadable", about
        )

    # -- outgoing ---------------------------------------------------------------------------------------

    async def acknowledge(self, message: ReceivedMessage) -> None:
        if self._shows_typing:
            await self._call("sendChatAction", {"chat_id": message.address.user, "action": "typing"})

    async def send(self, address: ConversationAddress, text: str) -> str:
        message = {"chat_id": address.user, "text": text, "link_preview_options": {"is_disabled": True}}
        answer = await self._call("sendMessage", message)
        return f"{address.user}/{object_of(answer, 'result').get('message_id', '')}"

    async def ask_to_reply(self, address: ConversationAddress) -> str:
        raise ChannelRejected("Telegram has no time limit for replies, so it needs no template.")

    async def _call(self, method: str, content: JsonObject) -> JsonObject:
        return _require_success(await self._request("POST", f"{self._base}/{method}", content))

    async def fetch(self, id: str) -> HttpResponse:
        """`getFile` returns a path, which is fetched below `/file/`."""
        url = f"{self._base}/getFile?file_id={quote(id, safe='')}"
        about = object_of(_require_success(await self._request("GET", url)), "result")
        path = text_of(about, "file_path")
        if not path or ".." in path:
            raise ChannelError("The Bot API did not return the path of a file.")
        return await self._download(f"{self._files}/{quote(path)}", about.get("file_size"), {})


# -- messages ------------------------------------------------------------------------------------------------


def _button(pressed: Mapping[str, Any]) -> tuple[str, JsonObject]:
    return text_of(pressed, "data"), {"kind": "button", "reply_id": text_of(pressed, "data", MAX_NAME)}


def _content(message: Mapping[str, Any]) -> tuple[str, JsonObject]:
    """Returns the text for the agent, and details."""
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
    """Returns the body of a successful answer. Raises: ChannelError, ChannelRejected."""
    try:
        body = answer.json()
    except orjson.JSONDecodeError:
        body = None
    if answer.status < 300 and isinstance(body, dict) and body.get("ok") is True:
        return body
    message = f"The Bot API answered {answer.status}."
    if answer.status in _TEMPORARY_CODES or answer.status >= 500 or answer.status < 300:
        pause = object_of(body, "parameters").get("retry_after") if isinstance(body, dict) else None
        raise ChannelError(message, float(pause) if isinstance(pause, int) and 0 < pause < 100_000 else 0.0)
    raise ChannelRejected(message)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
