"""Slack by the Events API and the Web API (docs.slack.dev; docs/slack.md).

The app answers messages to it and mentions in channels. A thread is a conversation. An answer appears while
it is made: the message is posted once and edited at a bounded rate.
"""

from __future__ import annotations

import hmac
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs

import orjson
from pydantic import BaseModel, Field, SecretStr
from yarl import URL

from astromesh.channels.base import (
    ChannelDecision,
    ConversationAddress,
    PreparedMessage,
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
    split_text,
    text_of,
)
from astromesh.errors import ChannelError, ChannelRejected, Forbidden, InvalidInput, Unauthorized
from astromesh.net.http import Http, HttpResponse
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import JsonObject

_JSON = "application/json; charset=utf-8"
#: characters of one message in Markdown
MAX_SLACK_MESSAGE = 12_000
#: seconds that a signature is valid, against repeated requests
MAX_AGE_SECONDS = 300
#: errors of the Web API that pass, or that the operator mends
_TEMPORARY = frozenset(
    {"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable", "request_timeout",
     "invalid_auth", "not_authed", "token_expired", "token_revoked", "account_inactive"}
)  # fmt: skip
#: subtypes of messages that a person has written
_WRITTEN = frozenset({"", "file_share", "thread_broadcast"})
#: files of one message that the agent receives, and messages that may be edited at once
_MAX_FILES, _MAX_DRAFTS = 10, 1000
#: characters of the arguments that a question shows
_MAX_ARGUMENTS = 2000
_MENTION = re.compile(r"<@([A-Z0-9]+)(?:\|[^>]*)?>")
_LINK = re.compile(r"<((?:https?|mailto):[^|>]+)(?:\|([^>]*))?>")
_PLACE = re.compile(r"<[#!][^|>]*\|?([^>]*)>")
_ACTION = "astromesh_decision"
_DECISIONS: Mapping[str, tuple[str, str]] = {
    "approve": ("Approve", "primary"), "deny": ("Deny", "danger"),
}  # fmt: skip


class SlackOptions(MessengerOptions):
    bot_token: SecretStr = Field(min_length=1, description="Bot User OAuth Token of the app (xoxb-…).")
    signing_secret: SecretStr = Field(min_length=1, description="Signing Secret of the app.")
    api_base: str = Field("https://slack.com/api", min_length=1, description="The Web API.")
    streaming: bool = Field(True, description="Show an answer while it is made, by edits of its message.")
    reaction: str = Field("eyes", description="Emoji that marks a message as seen; empty: none.")
    approvers: tuple[str, ...] = Field(
        (),
        description="Ids of members who may decide for waiting runs by buttons; `*`: everybody in the "
        "conversation; empty: no buttons.",
    )


class Slack(Messenger):
    """One app in one workspace."""

    Options: ClassVar[type[BaseModel]] = SlackOptions

    def __init__(self, options: SlackOptions, http: Http, clock: Clock | None = None) -> None:
        self._authorization = {"authorization": f"Bearer {options.bot_token.get_secret_value()}"}
        secret = options.signing_secret.get_secret_value()
        super().__init__(options, http, {**self._authorization, "content-type": _JSON}, secret, "")
        self.addresses = ()  # all channels that the app is in
        self.streams = options.streaming
        self._options, self._base = options, options.api_base.rstrip("/")
        self._clock: Clock = clock or SystemClock()
        #: the message that shows the answer of a conversation so far
        self._drafts: OrderedDict[ConversationAddress, str] = OrderedDict()

    @classmethod
    async def open(cls, options: SlackOptions, deps: Deps) -> Self:
        return cls(options, deps.http, deps.clock)

    # -- incoming --------------------------------------------------------------------------------------------

    def challenge(self, request: WebhookRequest) -> str:
        raise Forbidden("Slack verifies a webhook by POST.")

    def verify(self, request: WebhookRequest) -> None:
        """Checks `X-Slack-Signature: v0=HEX` over time and raw body, with the signing secret as key."""
        sent_at = request.headers.get("x-slack-request-timestamp", "")
        signed = b"v0:%s:%s" % (sent_at.encode(errors="replace"), request.body)
        expected = f"v0={hmac.new(self.secret.encode(), signed, sha256).hexdigest()}"
        if not are_equal(request.headers.get("x-slack-signature", ""), expected):
            raise Unauthorized(
                "The webhook is not signed with this app's signing secret (X-Slack-Signature)."
            )
        is_time = sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 16
        if not is_time or abs(self._clock.now() - int(sent_at)) > MAX_AGE_SECONDS:
            raise Unauthorized(
                "The webhook was signed more than five minutes ago, or by a clock that is wrong."
            )

    def parse(self, body: bytes) -> WebhookContent:
        if body.startswith(b"payload="):
            return _pressed(_form(body))
        data = parse_object(body)
        match data.get("type"):
            case "url_verification":
                return WebhookContent(answer={"challenge": text_of(data, "challenge")})
            case "event_callback":
                read = _message(data)
                return WebhookContent((read,) if read is not None else ())
        raise InvalidInput("The webhook is not of the Events API.")

    # -- files -----------------------------------------------------------------------------------------------

    async def prepare(self, message: ReceivedMessage) -> PreparedMessage:
        """Returns the message with each of its files, or a note about it."""
        files = list_of(message.details, "files")
        details = {key: value for key, value in message.details.items() if key != "files"}
        if not files:
            return PreparedMessage(message.text, details=details)
        alone = [replace(message, details={"kind": _kind(file), "attachment": file}) for file in files]
        found = [await super(Slack, self).prepare(one) for one in alone]
        texts = [*(one.text for one in found), *filter(None, [str(details.get("caption", ""))])]
        pictures = tuple(picture for one in found for picture in one.attachments)
        about = [one.details["attachment"] for one in found]
        return PreparedMessage("\n".join(texts), pictures, {**details, "files": about})

    async def fetch(self, id: str) -> HttpResponse:
        """Fetches a file by its address. Only Slack's hosts receive the token."""
        try:
            url = URL(id)
            origin, host = url.origin(), url.host or ""
        except ValueError as error:
            raise ChannelError("Slack did not send the address of a file.") from error
        if origin == URL(self._base).origin():
            return await self._download(url, None, self._authorization)
        is_slack = url.scheme == "https" and (host == "slack.com" or host.endswith(".slack.com"))
        headers = self._authorization if is_slack else {}
        return await self._download(url, None, headers, is_trusted=False)

    # -- outgoing --------------------------------------------------------------------------------------------

    def split(self, text: str) -> tuple[str, ...]:
        return split_text(text, MAX_SLACK_MESSAGE)

    async def acknowledge(self, message: ReceivedMessage) -> None:
        stamp = str(message.details.get("ts", ""))
        if self._options.reaction and stamp:
            content = {"channel": message.address.account, "timestamp": stamp, "name": self._options.reaction}
            await self._call("reactions.add", content)

    async def send(self, address: ConversationAddress, text: str) -> str:
        """Posts a message. The first part of an answer replaces what has been shown of it."""
        draft = self._drafts.pop(address, "")
        if draft:
            try:
                return await self._edit(address, draft, text)
            except ChannelRejected:  # somebody has deleted it
                pass
            except ChannelError:
                self._drafts[address] = draft
                raise
        return await self._post(address, {"markdown_text": text})

    async def show(self, address: ConversationAddress, text: str) -> None:
        """Shows the answer so far: posts its message, and edits it from then on."""
        preview = self.split(f"{text} …")[0]
        draft = self._drafts.get(address, "")
        if draft:
            await self._edit(address, draft, preview)
            return
        self._drafts[address] = (await self._post(address, {"markdown_text": preview})).rpartition("/")[2]
        if len(self._drafts) > _MAX_DRAFTS:
            self._drafts.popitem(last=False)

    async def ask_to_reply(self, address: ConversationAddress) -> str:
        raise ChannelRejected("Slack has no time limit for replies, so it needs no template.")

    async def ask_decision(self, address: ConversationAddress, run_id: str, question: JsonObject) -> None:
        """Posts a question of a waiting run with buttons, if somebody may press them."""
        if not self._options.approvers:
            return
        arguments = orjson.dumps(question.get("arguments"), option=orjson.OPT_INDENT_2).decode()
        text = f"May I call `{question.get('name')}`?\n```\n{_escaped(arguments)[:_MAX_ARGUMENTS]}\n```"
        buttons = [
            {"type": "button", "action_id": f"{_ACTION}_{word}", "style": style,
             "text": {"type": "plain_text", "text": label},
             "value": f"{run_id} {question.get('question') or '-'} {word}"}
            for word, (label, style) in _DECISIONS.items()
        ]  # fmt: skip
        blocks = [
            {"type": "section", "text": {"type": "mrkdwn", "text": text}},
            {"type": "actions", "elements": buttons},
        ]
        await self._post(address, {"text": "A decision is needed.", "blocks": blocks})

    def may_decide(self, decision: ChannelDecision) -> bool:
        approvers = self._options.approvers
        return "*" in approvers or decision.by in approvers

    async def show_decision(self, decision: ChannelDecision, outcome: str) -> None:
        """Replaces the buttons with the outcome."""
        text = f"{_escaped(outcome)} (<@{decision.by}>)"
        blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": text}}]
        content = {
            "channel": decision.address.account,
            "ts": decision.message,
            "text": text,
            "blocks": blocks,
        }
        await self._call("chat.update", content)

    async def _post(self, address: ConversationAddress, content: JsonObject) -> str:
        thread = {"thread_ts": address.thread} if address.thread else {}
        answer = await self._call(
            "chat.postMessage", {"channel": address.account, "unfurl_links": False, **thread, **content}
        )
        return f"{address.account}/{text_of(answer, 'ts', MAX_NAME)}"

    async def _edit(self, address: ConversationAddress, stamp: str, text: str) -> str:
        await self._call("chat.update", {"channel": address.account, "ts": stamp, "markdown_text": text})
        return f"{address.account}/{stamp}"

    async def _call(self, method: str, content: JsonObject) -> JsonObject:
        return _require_success(await self._request("POST", f"{self._base}/{method}", content))


def _require_success(answer: HttpResponse) -> JsonObject:
    """Returns the body of a successful answer. Raises: ChannelError, ChannelRejected."""
    try:
        body = answer.json()
    except orjson.JSONDecodeError:
        body = None
    body = body if isinstance(body, dict) else {}
    if answer.status < 300 and body.get("ok") is True:
        return body
    error = text_of(body, "error", MAX_NAME)
    named = error if re.fullmatch(r"[a-z_]{1,64}", error) else "unknown"
    message = f"The Web API answered {answer.status}, error {named}."
    if answer.status == 429 or answer.status >= 500 or named in {*_TEMPORARY, "unknown"}:
        pause = answer.headers.get("retry-after", "")
        raise ChannelError(message, float(pause) if pause.isdecimal() and len(pause) < 6 else 0.0)
    raise ChannelRejected(message)


# -- events ------------------------------------------------------------------------------------------------


def _message(data: Mapping[str, Any]) -> ReceivedMessage | None:
    """Returns a message to the app, or a mention in a channel; None for everything else."""
    event, own = object_of(data, "event"), text_of(data, "event_id", MAX_NAME)
    channel, user = text_of(event, "channel", MAX_NAME), text_of(event, "user", MAX_NAME)
    stamp, thread = text_of(event, "ts", MAX_NAME), text_of(event, "thread_ts", MAX_NAME)
    what, direct = text_of(event, "type"), text_of(event, "channel_type") == "im"
    if not (own and channel and user and stamp) or event.get("bot_id"):
        return None
    if text_of(event, "subtype") not in _WRITTEN:
        return None
    if what != "app_mention" and not (what == "message" and direct):
        return None
    # in a channel the thread of the mention is the conversation, with everybody in it
    address = (
        ConversationAddress(channel, user, thread)
        if direct
        else ConversationAddress(channel, channel, thread or stamp)
    )
    text = plain_text(text_of(event, "text"), _own_ids(data))
    files = [_file(one) for one in list_of(event, "files")[:_MAX_FILES]]
    about: JsonObject = {"kind": "text", "ts": stamp, "sender": user}
    if files:
        about |= {"kind": "document", "caption": text, "files": files}
    content = text or ("[document]" if files else "")
    return ReceivedMessage(own, address, content, "message" if content else "unreadable", about)


def _own_ids(data: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(text_of(one, "user_id", MAX_NAME) for one in list_of(data, "authorizations"))


def _file(file: Mapping[str, Any]) -> JsonObject:
    return {
        "id": text_of(file, "url_private_download") or text_of(file, "url_private"),
        "mime_type": text_of(file, "mimetype", MAX_NAME),
        "filename": text_of(file, "name", MAX_NAME),
        "voice": text_of(file, "subtype") == "slack_audio",
    }


def _kind(file: Mapping[str, Any]) -> str:
    main = text_of(file, "mime_type").partition("/")[0]
    return main if main in ("image", "audio", "video") else "document"


def plain_text(text: str, own: frozenset[str] = frozenset()) -> str:
    """Returns the text of a message without Slack's markup: mentions as `@ID`, links with their address.

    Args:
        own: Ids of the app, whose mentions are left out.
    """
    text = _MENTION.sub(lambda found: "" if found[1] in own else f"@{found[1]}", text)
    text = _LINK.sub(lambda found: f"{found[2]} ({found[1]})" if found[2] else found[1], text)
    text = _PLACE.sub(r"\1", text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("```", "'''")


# -- buttons -----------------------------------------------------------------------------------------------


def _form(body: bytes) -> dict[str, Any]:
    """Raises: InvalidInput: the body is not a form with a JSON object."""
    try:
        fields: Mapping[str, Sequence[str]] = parse_qs(body.decode(), strict_parsing=True, max_num_fields=8)
    except ValueError as error:
        raise InvalidInput("The webhook is not a form.") from error
    return parse_object(fields.get("payload", [""])[0].encode(errors="replace"))


def _pressed(data: Mapping[str, Any]) -> WebhookContent:
    """Returns the decisions of pressed buttons; other interactions are ignored."""
    user = text_of(object_of(data, "user"), "id", MAX_NAME)
    channel = text_of(object_of(data, "channel"), "id", MAX_NAME)
    message = object_of(data, "message")
    stamp, thread = text_of(message, "ts", MAX_NAME), text_of(message, "thread_ts", MAX_NAME)
    found = []
    for action in list_of(data, "actions"):
        words = text_of(action, "value", MAX_NAME).split()
        if not text_of(action, "action_id").startswith(_ACTION) or len(words) != 3 or not (user and channel):
            continue
        run_id, question, word = words
        if word in _DECISIONS:
            owner = user if channel.startswith("D") else channel
            address = ConversationAddress(channel, owner, thread)
            which = "" if question == "-" else question
            found.append(ChannelDecision(address, run_id, which, word == "approve", user, stamp))
    return WebhookContent(decisions=tuple(found))
