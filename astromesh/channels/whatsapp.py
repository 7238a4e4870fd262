"""WhatsApp by the Business Cloud API (document 001, step 1; docs/whatsapp.md).

Replies go to `{api_base}/{phone_number_id}/messages` with the access token as Bearer. Webhooks are parsed
leniently: a table has one reader per type of message, and what is not of the documented shape is ignored.
The Graph API names the address of an attached file: a foreign address is fetched through the forgery guard,
and only hosts of Meta receive the access token (reliability.md S4, S8).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, ClassVar, Literal, Self
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from yarl import URL

from astromesh.channels.attachments import Attachments, FetchedFile, file_of
from astromesh.channels.base import (
    DELIVERY_STATES,
    ConversationAddress,
    DeliveryState,
    DeliveryStatus,
    MessageKind,
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
from astromesh.errors import ChannelError, ChannelRejected, Forbidden, NetError, OutsideWindow, Unauthorized
from astromesh.net.http import Http, HttpResponse
from astromesh.plugins import Deps
from astromesh.types import JsonObject

# -- attached files ------------------------------------------------------------------------------------------

#: what Meta keeps files at
_MEDIA_HOSTS = ("facebook.com", "fbsbx.com", "fbcdn.net", "whatsapp.net", "whatsapp.com")


_MEDIA_SECONDS, _MEDIA_ANSWER_BYTES = 20.0, 1 << 20


class Media(Attachments):
    """Fetches attachments by the Graph API.

    Args:
        base: of the Graph API, which the operator wrote.
        headers: with the access token.
        most_bytes, most_characters: see `Attachments`.
    """

    def __init__(
        self, http: Http, base: str, headers: Mapping[str, str], most_bytes: int, most_characters: int
    ) -> None:
        super().__init__(most_bytes, most_characters)
        self._http, self._base = http, base
        self._headers = {"authorization": headers["authorization"]}

    async def fetch(self, id: str) -> FetchedFile:
        url = f"{self._base}/{quote(id, safe='')}"
        found = await self._http.request(
            "GET", url, headers=self._headers, timeout=_MEDIA_SECONDS, limit=_MEDIA_ANSWER_BYTES
        )
        about = _media_info(found)
        size = about.get("file_size")
        if isinstance(size, int) and size > self.most_bytes:
            return self.too_large()
        answer = await self._download(str(about.get("url", "")))
        return file_of(answer)

    async def _download(self, address: str) -> HttpResponse:
        try:
            url = URL(address)
            host, origin = url.host or "", url.origin()
        except ValueError as error:
            raise ChannelError("The Graph API named no address of a media file.") from error
        if origin == URL(self._base).origin():
            return await self._http.request(
                "GET", url, headers=self._headers, timeout=_MEDIA_SECONDS, limit=self.most_bytes
            )
        known = url.scheme == "https" and any(host == h or host.endswith(f".{h}") for h in _MEDIA_HOSTS)
        return await self._http.fetch_untrusted(
            "GET", url, headers=self._headers if known else {}, timeout=_MEDIA_SECONDS, limit=self.most_bytes
        )


def _media_info(answer: HttpResponse) -> JsonObject:
    """Raises: ChannelError: it is none, or an error."""
    try:
        found = answer.json()
    except ValueError as error:
        raise ChannelError("The Graph API answered something that is not JSON.") from error
    if answer.status != 200 or not isinstance(found, dict):
        raise ChannelError(f"The Graph API answered {answer.status} for a media file.")
    return found


# -- webhooks (Cloud API, webhooks reference, `messages`) ----------------------------------------------------

_OUTSIDE_WINDOW_CODE = 131047


#: a reader answers what the agent is asked, and what else is known
Content = tuple[str, JsonObject]


def parse_webhook(data: Mapping[str, Any], *, tell_reactions: bool = False) -> WebhookContent:
    """Every message and status of every change of every entry, in their order."""
    messages: list[ReceivedMessage] = []
    statuses: list[DeliveryStatus] = []
    for value in _changes(data):
        ours = text_of(object_of(value, "metadata"), "phone_number_id")
        names = {
            text_of(c, "wa_id"): text_of(object_of(c, "profile"), "name", MAX_NAME)
            for c in list_of(value, "contacts")
        }
        for message in list_of(value, "messages"):
            read = _message(message, ours, names, tell_reactions)
            messages += [read] if read is not None else []
        for status in list_of(value, "statuses"):
            said = _status(status, ours)
            statuses += [said] if said is not None else []
    return WebhookContent(tuple(messages), tuple(statuses))


def _changes(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in list_of(data, "entry"):
        for change in list_of(entry, "changes"):
            if change.get("field", "messages") == "messages":
                yield object_of(change, "value")


def _message(
    message: Mapping[str, Any], ours: str, names: Mapping[str, str], tell_reactions: bool
) -> ReceivedMessage | None:
    own, sender, what = text_of(message, "id"), text_of(message, "from"), text_of(message, "type")
    if not (own and sender and ours) or what in _IGNORED_TYPES or (what == "reaction" and not tell_reactions):
        return None
    text, more = _READERS[what](object_of(message, what)) if what in _READERS else ("", {})
    about: JsonObject = {"kind": what or "unknown", "sent_at": text_of(message, "timestamp"), **more}
    if name := names.get(sender):
        about["profile_name"] = name
    if object_of(message, "context").get("forwarded") is True:
        about["forwarded"] = True
    kind: MessageKind = "message" if text else "unreadable"
    return ReceivedMessage(own, ConversationAddress(ours, sender), text, kind, about)


def _status(status: Mapping[str, Any], ours: str) -> DeliveryStatus | None:
    own, to, state = text_of(status, "id"), text_of(status, "recipient_id"), text_of(status, "status")
    if not (own and ours) or state not in DELIVERY_STATES:
        return None
    codes = [error.get("code") for error in list_of(status, "errors")]
    code = str(codes[0]) if codes and isinstance(codes[0], int) else ""
    known: DeliveryState = next(known for known in DELIVERY_STATES if known == state)
    return DeliveryStatus(own, ConversationAddress(ours, to), known, code, _OUTSIDE_WINDOW_CODE in codes)


# -- types of messages ---------------------------------------------------------------------------------------
def _text(content: Mapping[str, Any]) -> Content:
    return text_of(content, "body"), {}


def _button(content: Mapping[str, Any]) -> Content:
    """A quick-reply button of a template."""
    return text_of(content, "text"), {"reply_id": text_of(content, "payload", MAX_NAME)}


def _interactive(content: Mapping[str, Any]) -> Content:
    """A chosen button or row of a list, or a filled-in form."""
    what = text_of(content, "type")
    chosen = object_of(content, what)
    if what == "nfm_reply":
        return text_of(chosen, "response_json"), {"reply_id": text_of(chosen, "name", MAX_NAME)}
    return text_of(chosen, "title"), {"reply_id": text_of(chosen, "id", MAX_NAME)}


def _reaction(content: Mapping[str, Any]) -> Content:
    emoji = text_of(content, "emoji", 32)
    return (f"[The user reacted with {emoji} to an earlier message.]" if emoji else ""), {"emoji": emoji}


def _location(content: Mapping[str, Any]) -> Content:
    place = place_of(content)
    if place is None:
        return "", {}
    named = ", ".join(filter(None, (text_of(content, key, MAX_NAME) for key in ("name", "address"))))
    about = {"latitude": place[0], "longitude": place[1], "name": named}
    return f"[The user sent a location: {named + ' ' if named else ''}({place[0]}, {place[1]})]", about


def _attachment(what: str) -> Callable[[Mapping[str, Any]], Content]:
    def read(content: Mapping[str, Any]) -> Content:
        attached = {
            "id": text_of(content, "id", MAX_NAME),
            "mime_type": text_of(content, "mime_type", MAX_NAME),
            "filename": text_of(content, "filename", MAX_NAME),
            "voice": content.get("voice") is True,
        }
        text = text_of(content, "caption")
        return text or f"[{what}]", {"caption": text, "attachment": attached}

    return read


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Content]] = {
    "text": _text,
    "button": _button,
    "interactive": _interactive,
    "reaction": _reaction,
    "location": _location,
    "image": _attachment("image"),
    "sticker": _attachment("sticker"),
    "audio": _attachment("audio"),
    "video": _attachment("video"),
    "document": _attachment("document"),
}


#: notices of WhatsApp, e.g. that a person has a new number: nobody said anything
_IGNORED_TYPES = frozenset({"system", "ephemeral"})


#: characters of one text message
MOST_CHARACTERS = 4096


#: seconds one call of the Graph API may take, and bytes it may answer
_TIMEOUT_SECONDS, _ANSWER_BYTES = 20.0, 1 << 20


#: the person has not written for 24 hours
OUTSIDE_WINDOW = 131047


#: Graph error codes that pass by themselves: throughput, pair and account limits, temporary faults, and a
#: token that is wrong until the operator renews it
_TEMPORARY_CODES = frozenset({1, 2, 4, 80007, 130429, 131000, 131016, 131048, 131056, 133004, 0, 190})


class Template(BaseModel):
    """A template that Meta has approved, without parameters."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, description="Its name at Meta.")
    language: str = Field("en", min_length=2, description="Its language code at Meta.")


class WhatsAppOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    verify_token: SecretStr = Field(min_length=1, description="Token of the webhook's verification.")
    access_token: SecretStr = Field(min_length=1, description="Sent as Bearer with every message.")
    phone_number_id: str = Field(min_length=1, description="The business phone number's id, in quotes.")
    app_secret: SecretStr = Field(min_length=1, description="Key of the webhook's signature.")
    api_base: str = Field("https://graph.facebook.com/v23.0", min_length=1, description="The Graph API.")
    max_media_bytes: int = Field(5_000_000, ge=0, description="Larger attachments are not fetched.")
    max_text_characters: int = Field(
        20_000, ge=0, description="Of a text document, so many characters are shown to the agent."
    )
    mark_read: bool = Field(True, description="Show that a message was read, and that we are typing.")
    reactions: Literal["ignore", "tell"] = Field(
        "ignore", description="Whether the agent is told of a reaction, and answers it."
    )
    unreadable_reply: str = Field(
        "Sorry, I can't read this kind of message yet. Please write it to me as text.",
        description="Answer to what cannot be read; empty for none.",
    )
    fallback_template: Template | None = Field(
        None, description="Sent where a reply comes after the 24 hours in which one may answer."
    )


class WhatsApp:
    """One app at Meta, with one phone number or more."""

    Options: ClassVar[type[BaseModel]] = WhatsAppOptions

    def __init__(self, options: WhatsAppOptions, http: Http) -> None:
        self._options = options
        self._http = http
        self._base = options.api_base.rstrip("/")
        self._headers = {
            "authorization": f"Bearer {options.access_token.get_secret_value()}",
            "content-type": "application/json",
        }
        self._media = Media(
            http, self._base, self._headers, options.max_media_bytes, options.max_text_characters
        )
        self.secret = options.app_secret.get_secret_value()
        self.addresses = frozenset({options.phone_number_id})
        self.unreadable_reply = options.unreadable_reply

    @classmethod
    async def open(cls, options: WhatsAppOptions, deps: Deps) -> Self:
        return cls(options, deps.http)

    # -- what comes in ---------------------------------------------------------------------------------------

    def challenge(self, request: WebhookRequest) -> str:
        """Meta's verification of a webhook: `hub.mode`, `hub.verify_token`, `hub.challenge`."""
        given = request.query.get("hub.verify_token", "")
        if request.query.get("hub.mode") != "subscribe" or not _equal_in_constant_time(
            given, self._options.verify_token.get_secret_value()
        ):
            raise Forbidden("The verify token is not the one of channels.yaml.")
        return request.query.get("hub.challenge", "")

    def verify(self, request: WebhookRequest) -> None:
        """`X-Hub-Signature-256: sha256=HEX` over the raw body, with the app secret as key."""
        signed = hmac.new(self.secret.encode(), request.body, sha256).hexdigest()
        if not _equal_in_constant_time(request.headers.get("x-hub-signature-256", ""), f"sha256={signed}"):
            raise Unauthorized("The webhook is not signed with this app's secret (X-Hub-Signature-256).")

    def parse(self, body: bytes) -> WebhookContent:
        return parse_webhook(parse_object(body), tell_reactions=self._options.reactions == "tell")

    async def prepare(self, message: ReceivedMessage) -> PreparedMessage:
        return await self._media.prepare(message)

    # -- what goes out ---------------------------------------------------------------------------------------

    async def acknowledge(self, message: ReceivedMessage) -> None:
        if not self._options.mark_read:
            return
        seen: JsonObject = {"messaging_product": "whatsapp", "status": "read", "message_id": message.id}
        await self._post(message.address.account, {**seen, "typing_indicator": {"type": "text"}})

    def split(self, text: str) -> tuple[str, ...]:
        return split_text(text, MOST_CHARACTERS)

    async def send(self, address: ConversationAddress, text: str) -> str:
        return await self._message(address, {"type": "text", "text": {"preview_url": False, "body": text}})

    async def ask_to_reply(self, address: ConversationAddress) -> str:
        template = self._options.fallback_template
        if template is None:
            raise ChannelRejected("No fallback_template is set up, so that nothing can be sent any more.")
        named = {"name": template.name, "language": {"code": template.language}}
        return await self._message(address, {"type": "template", "template": named})

    async def close(self) -> None:
        """Nothing: the HTTP session is shared."""

    async def _message(self, address: ConversationAddress, content: JsonObject) -> str:
        head = {"messaging_product": "whatsapp", "recipient_type": "individual", "to": address.user}
        answer = await self._post(address.account, {**head, **content})
        try:
            return str(answer["messages"][0]["id"])
        except (
            LookupError,
            TypeError,
        ) as error:  # it was taken; without an id its statuses mean nothing to us
            raise ChannelRejected("The Graph API took a message and gave it no id.") from error

    async def _post(self, ours: str, content: JsonObject) -> Any:
        try:
            answer = await self._http.request(
                "POST", f"{self._base}/{ours}/messages", body=orjson.dumps(content), headers=self._headers,
                timeout=_TIMEOUT_SECONDS, limit=_ANSWER_BYTES,
            )  # fmt: skip
        except NetError as error:
            raise ChannelError(str(error)) from error
        return _require_success(answer)


def _require_success(answer: HttpResponse) -> Any:
    """The body of an answer that says yes. Raises: ChannelError: of the right kind."""
    body = _json(answer)
    if answer.status < 300:
        return body
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    said = f"The Graph API answered {answer.status}, error {code if isinstance(code, int) else 'unknown'}."
    if code == OUTSIDE_WINDOW:
        raise OutsideWindow(said)
    if answer.status in (401, 408, 429) or answer.status >= 500 or code in _TEMPORARY_CODES:
        raise ChannelError(said, _retry_after(answer.headers.get("retry-after", "")))
    raise ChannelRejected(said)


def _json(answer: HttpResponse) -> Any:
    try:
        return answer.json()
    except orjson.JSONDecodeError:
        return None


def _retry_after(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0


def _equal_in_constant_time(given: str, right: str) -> bool:
    """Compares in a time that says nothing about how much of it is right."""
    return hmac.compare_digest(given.encode(errors="replace"), right.encode())
