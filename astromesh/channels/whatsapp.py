"""WhatsApp by the Business Cloud API (document 001, step 1; docs/whatsapp.md).

What comes in is in `whatsapp_messages`, attached files are in `whatsapp_media`; here are the signature and
what goes out. Answers go to `{api_base}/{phone_number_id}/messages` with the access token as Bearer.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any, ClassVar, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.abc.channel import Address, Inbound, Prepared, Received, Webhook
from astromesh.abc.deps import Deps
from astromesh.channels.splitting import split
from astromesh.channels.webhook_json import object_in
from astromesh.channels.whatsapp_media import Media
from astromesh.channels.whatsapp_messages import parse
from astromesh.errors import (
    ChannelError,
    ChannelRejected,
    Forbidden,
    NetError,
    OutsideWindow,
    Unauthorized,
)
from astromesh.net.http import Answer, Http
from astromesh.types import JsonObject

#: characters of one text message
MOST_CHARACTERS = 4096
#: seconds one call of the Graph API may take, and bytes it may answer
_PATIENCE, _ANSWER_BYTES = 20.0, 1 << 20
#: the person has not written for 24 hours
OUTSIDE_WINDOW = 131047
#: Graph error codes that pass by themselves: throughput, pair and account limits, temporary faults, and a
#: token that is wrong until the operator renews it
_LATER = frozenset({1, 2, 4, 80007, 130429, 131000, 131016, 131048, 131056, 133004, 0, 190})


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

    def challenge(self, request: Webhook) -> str:
        """Meta's verification of a webhook: `hub.mode`, `hub.verify_token`, `hub.challenge`."""
        given = request.query.get("hub.verify_token", "")
        if request.query.get("hub.mode") != "subscribe" or not _same(
            given, self._options.verify_token.get_secret_value()
        ):
            raise Forbidden("The verify token is not the one of channels.yaml.")
        return request.query.get("hub.challenge", "")

    def verify(self, request: Webhook) -> None:
        """`X-Hub-Signature-256: sha256=HEX` over the raw body, with the app secret as key."""
        signed = hmac.new(self.secret.encode(), request.body, sha256).hexdigest()
        if not _same(request.headers.get("x-hub-signature-256", ""), f"sha256={signed}"):
            raise Unauthorized("The webhook is not signed with this app's secret (X-Hub-Signature-256).")

    def parse(self, body: bytes) -> Received:
        return parse(object_in(body), tell_reactions=self._options.reactions == "tell")

    async def prepare(self, message: Inbound) -> Prepared:
        return await self._media.prepare(message)

    # -- what goes out ---------------------------------------------------------------------------------------

    async def noticed(self, message: Inbound) -> None:
        if not self._options.mark_read:
            return
        seen: JsonObject = {"messaging_product": "whatsapp", "status": "read", "message_id": message.id}
        await self._post(message.address.ours, {**seen, "typing_indicator": {"type": "text"}})

    def split(self, text: str) -> tuple[str, ...]:
        return split(text, MOST_CHARACTERS)

    async def send(self, address: Address, text: str) -> str:
        return await self._message(address, {"type": "text", "text": {"preview_url": False, "body": text}})

    async def recall(self, address: Address) -> str:
        template = self._options.fallback_template
        if template is None:
            raise ChannelRejected("No fallback_template is set up, so that nothing can be sent any more.")
        named = {"name": template.name, "language": {"code": template.language}}
        return await self._message(address, {"type": "template", "template": named})

    async def close(self) -> None:
        """Nothing: the HTTP session is shared."""

    async def _message(self, address: Address, content: JsonObject) -> str:
        head = {"messaging_product": "whatsapp", "recipient_type": "individual", "to": address.theirs}
        answer = await self._post(address.ours, {**head, **content})
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
                timeout=_PATIENCE, limit=_ANSWER_BYTES,
            )  # fmt: skip
        except NetError as error:
            raise ChannelError(str(error)) from error
        return _accepted(answer)


def _accepted(answer: Answer) -> Any:
    """The body of an answer that says yes. Raises: ChannelError: of the right kind."""
    body = _json(answer)
    if answer.status < 300:
        return body
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    said = f"The Graph API answered {answer.status}, error {code if isinstance(code, int) else 'unknown'}."
    if code == OUTSIDE_WINDOW:
        raise OutsideWindow(said)
    if answer.status in (401, 408, 429) or answer.status >= 500 or code in _LATER:
        raise ChannelError(said, _seconds(answer.headers.get("retry-after", "")))
    raise ChannelRejected(said)


def _json(answer: Answer) -> Any:
    try:
        return answer.json()
    except orjson.JSONDecodeError:
        return None


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0


def _same(given: str, right: str) -> bool:
    """Compares in a time that says nothing about how much of it is right."""
    return hmac.compare_digest(given.encode(errors="replace"), right.encode())
