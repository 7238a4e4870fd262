"""WhatsApp by the Business Cloud API (docs/whatsapp.md).

Replies go to `{api_base}/{phone_number_id}/messages` with the access token as Bearer. Webhooks are parsed
leniently: a table has one reader per type of message, and undocumented content is ignored. The Graph API
names the address of an attached file: a foreign address is fetched through the forgery guard, and only hosts
of Meta receive the access token.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from yarl import URL

from astromesh.channels.base import (
    DELIVERY_STATES,
    ConversationAddress,
    DeliveryState,
    DeliveryStatus,
    MessageKind,
    ReceivedMessage,
    WebhookContent,
    WebhookRequest,
)
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
from astromesh.errors import ChannelError, ChannelRejected, Forbidden, OutsideWindow, Unauthorized
from astromesh.net.http import Http, HttpResponse
from astromesh.types import JsonObject

#: hosts where Meta stores files
_MEDIA_HOSTS = ("facebook.com", "fbsbx.com", "fbcdn.net", "whatsapp.net", "whatsapp.com")
#: the person has not written for 24 hours
OUTSIDE_WINDOW = 131047
#: Graph error codes of temporary errors: throughput, pair and account limits, faults of the service, and a
#: token that is wrong until the operator renews it
_TEMPORARY_CODES = frozenset({1, 2, 4, 80007, 130429, 131000, 131016, 131048, 131056, 133004, 0, 190})


class Template(BaseModel):
    """A template that Meta has approved, without parameters."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, description="Its name at Meta.")
    language: str = Field("en", min_length=2, description="Its language code at Meta.")


class WhatsAppOptions(MessengerOptions):
    verify_token: SecretStr = Field(min_length=1, description="Token of the webhook's verification.")
    access_token: SecretStr = Field(min_length=1, description="Sent as Bearer with every message.")
    phone_number_id: str = Field(min_length=1, description="The business phone number's id, in quotes.")
    app_secret: SecretStr = Field(min_length=1, description="Key of the webhook's signature.")
    api_base: str = Field("https://graph.facebook.com/v23.0", min_length=1, description="The Graph API.")
    mark_read: bool = Field(True, description="Mark messages as read, and show that an answer is written.")
    reactions: Literal["ignore", "tell"] = Field(
        "ignore", description="Whether the agent receives reactions and answers them."
    )
    fallback_template: Template | None = Field(
        None, description="Template that is sent when the 24 hours for a reply are over."
    )


class WhatsApp(Messenger):
    """One app at Meta, with one phone number or more."""

    Options: ClassVar[type[BaseModel]] = WhatsAppOptions

    def __init__(self, options: WhatsAppOptions, http: Http) -> None:
        self._authorization = {"authorization": f"Bearer {options.access_token.get_secret_value()}"}
        secret = options.app_secret.get_secret_value()
        super().__init__(options, http, self._authorization, secret, options.phone_number_id)
        self._options, self._base = options, options.api_base.rstrip("/")

    # -- incoming --------------------------------------------------------------------------------------------

    def challenge(self, request: WebhookRequest) -> str:
        """Answers Meta's verification of a webhook: `hub.mode`, `hub.verify_token`, `hub.challenge`."""
        token = self._options.verify_token.get_secret_value()
        is_verified = are_equal(request.query.get("hub.verify_token", ""), token)
        if request.query.get("hub.mode") != "subscribe" or not is_verified:
            raise Forbidden("The verify token differs from the one in channels.yaml.")
        return request.query.get("hub.challenge", "")

    def verify(self, request: WebhookRequest) -> None:
        """Checks `X-Hub-Signature-256: sha256=HEX` over the raw body, with the app secret as key."""
        signature = hmac.new(self.secret.encode(), request.body, sha256).hexdigest()
        if not are_equal(request.headers.get("x-hub-signature-256", ""), f"sha256={signature}"):
            raise Unauthorized("The webhook is not signed with this app's secret (X-Hub-Signature-256).")

    def parse(self, body: bytes) -> WebhookContent:
        return parse_webhook(parse_object(body), reactions=self._options.reactions == "tell")

    async def fetch(self, id: str) -> HttpResponse:
        about = _require_success(await self._request("GET", f"{self._base}/{quote(id, safe='')}"))
        about = about if isinstance(about, dict) else {}
        try:
            url = URL(str(about.get("url", "")))
            host, origin = url.host or "", url.origin()
        except ValueError as error:
            raise ChannelError("The Graph API did not return the address of a media file.") from error
        if origin == URL(self._base).origin():
            return await self._download(url, about.get("file_size"), self._authorization)
        is_meta = url.scheme == "https" and any(host == h or host.endswith(f".{h}") for h in _MEDIA_HOSTS)
        headers = self._authorization if is_meta else {}
        return await self._download(url, about.get("file_size"), headers, is_trusted=False)

    # -- outgoing --------------------------------------------------------------------------------------------

    async def acknowledge(self, message: ReceivedMessage) -> None:
        if not self._options.mark_read:
            return
        seen: JsonObject = {"messaging_product": "whatsapp", "status": "read", "message_id": message.id}
        await self._post(message.address.account, {**seen, "typing_indicator": {"type": "text"}})

    async def send(self, address: ConversationAddress, text: str) -> str:
        return await self._message(address, {"type": "text", "text": {"preview_url": False, "body": text}})

    async def ask_to_reply(self, address: ConversationAddress) -> str:
        template = self._options.fallback_template
        if template is None:
            raise ChannelRejected(
                "The 24 hours for a reply are over. Set fallback_template to send a template instead."
            )
        named = {"name": template.name, "language": {"code": template.language}}
        return await self._message(address, {"type": "template", "template": named})

    async def _message(self, address: ConversationAddress, content: JsonObject) -> str:
        head = {"messaging_product": "whatsapp", "recipient_type": "individual", "to": address.user}
        answer = await self._post(address.account, {**head, **content})
        try:
            return str(answer["messages"][0]["id"])
        except (LookupError, TypeError) as error:  # accepted; without an id, its statuses cannot be assigned
            raise ChannelRejected("The Graph API accepted a message and returned no id.") from error

    async def _post(self, account: str, content: JsonObject) -> Any:
        return _require_success(await self._request("POST", f"{self._base}/{account}/messages", content))


def _require_success(answer: HttpResponse) -> Any:
    """Returns the body of a successful answer. Raises: ChannelError, ChannelRejected, OutsideWindow."""
    try:
        body = answer.json()
    except orjson.JSONDecodeError:
        body = None
    if answer.status < 300:
        return body
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    message = f"The Graph API answered {answer.status}, error {code if isinstance(code, int) else 'unknown'}."
    if code == OUTSIDE_WINDOW:
        raise OutsideWindow(message)
    if answer.status in (401, 408, 429) or answer.status >= 500 or code in _TEMPORARY_CODES:
        pause = answer.headers.get("retry-after", "")
        raise ChannelError(message, float(pause) if pause.isdecimal() and len(pause) < 6 else 0.0)
    raise ChannelRejected(message)


# -- webhooks (Cloud API, webhooks reference, `messages`) ----------------------------------------------------

#: a reader returns the text for the agent, and details
Content = tuple[str, JsonObject]


def parse_webhook(data: Mapping[str, Any], *, reactions: bool = False) -> WebhookContent:
    """Returns every message and status of every change of every entry, in order."""
    messages: list[ReceivedMessage] = []
    statuses: list[DeliveryStatus] = []
    for value in _changes(data):
        ours = text_of(object_of(value, "metadata"), "phone_number_id")
        names = {
            text_of(c, "wa_id"): text_of(object_of(c, "profile"), "name", MAX_NAME)
            for c in list_of(value, "contacts")
        }
        for message in list_of(value, "messages"):
            read = _message(message, ours, names, reactions)
            messages += [read] if read is not None else []
        for status in list_of(value, "statuses"):
            known = _status(status, ours)
            statuses += [known] if known is not None else []
    return WebhookContent(tuple(messages), tuple(statuses))


def _changes(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in list_of(data, "entry"):
        for change in list_of(entry, "changes"):
            if change.get("field", "messages") == "messages":
                yield object_of(change, "value")


def _message(
    message: Mapping[str, Any], ours: str, names: Mapping[str, str], reactions: bool
) -> ReceivedMessage | None:
    own, sender, what = text_of(message, "id"), text_of(message, "from"), text_of(message, "type")
    if not (own and sender and ours) or what in _IGNORED_TYPES or (what == "reaction" and not reactions):
        return None
    text, more = _READERS[what](object_of(message, what)) if what in _READERS else ("", {})
    about: JsonObject = {"kind": what or "unknown", "sent_at": text_of(message, "timestamp"), **more}
    if name := names.get(sender):
        about["profile_name"] = name
    context = object_of(message, "context")
    if context.get("forwarded") is True:
        about["forwarded"] = True
    if quoted := text_of(context, "id", MAX_NAME):
        about["quoted"] = {"id": quoted, "author": "user" if context.get("from") == sender else "agent"}
        text = f"{_QUOTES[about['quoted']['author']]}\n{text}" if text and what in _QUOTING else text
    kind: MessageKind = "message" if text else "unreadable"
    return ReceivedMessage(own, ConversationAddress(ours, sender), text, kind, about)


def _status(status: Mapping[str, Any], ours: str) -> DeliveryStatus | None:
    own, to, state = text_of(status, "id"), text_of(status, "recipient_id"), text_of(status, "status")
    if not (own and ours) or state not in DELIVERY_STATES:
        return None
    codes = [error.get("code") for error in list_of(status, "errors")]
    code = str(codes[0]) if codes and isinstance(codes[0], int) else ""
    known: DeliveryState = next(known for known in DELIVERY_STATES if known == state)
    return DeliveryStatus(own, ConversationAddress(ours, to), known, code, OUTSIDE_WINDOW in codes)


#: Meta sends the id of a quoted message, and not its text
_QUOTES = {
    "agent": "[The user replies to an earlier message of yours.]",
    "user": "[The user replies to an earlier message of their own.]",
}
#: types whose context is a quote, and whose text is the person's; buttons and lists answer a message, too
_QUOTING = ("text",)

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
#: notices of WhatsApp, e.g. that a person has a new number
_IGNORED_TYPES = frozenset({"system", "ephemeral"})
