"""A second channel: all that one takes. It speaks lines of `id|from|to|text`, signed by a header."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from astromesh.channels.base import (
    ConversationAddress,
    DeliveryStatus,
    MessageKind,
    PreparedMessage,
    ReceivedMessage,
    WebhookContent,
    WebhookRequest,
)
from astromesh.errors import ChannelRejected, Forbidden, InvalidInput, Unauthorized


class PigeonOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ring: str


class Pigeon:
    """Keeps what it would send in `sent`; what `failures` holds is raised instead.

    Attributes:
        prepared: texts of messages that were made ready for the agent. seen: ids of those it showed as seen.
    """

    Options: ClassVar[type[BaseModel]] = PigeonOptions

    def __init__(self, ring: str) -> None:
        self.secret = ring
        self.addresses: Collection[str] = ()
        self.unreadable_reply = "Coo?"
        self.sent: list[tuple[str, str]] = []
        self.failures: list[Exception] = []
        self.prepared: list[str] = []
        self.seen: list[str] = []

    @classmethod
    async def open(cls, options: PigeonOptions, deps: object) -> Self:
        return cls(options.ring)

    def challenge(self, request: WebhookRequest) -> str:
        if request.query.get("ring") != self.secret:
            raise Forbidden("Not our pigeon.")
        return request.query.get("say", "")

    def verify(self, request: WebhookRequest) -> None:
        if request.headers.get("ring") != self.secret:
            raise Unauthorized("Not our pigeon.")

    def parse(self, body: bytes) -> WebhookContent:
        try:
            lines = [line.split("|") for line in body.decode().splitlines()]
        except UnicodeDecodeError as error:
            raise InvalidInput("A note is text.") from error
        messages, statuses = [], []
        for line in lines:
            if len(line) == 4 and line[3] == "*read*":
                statuses.append(DeliveryStatus(line[0], ConversationAddress(line[2], line[1]), "read"))
            elif len(line) == 4 and line[0]:
                kind: MessageKind = "message" if line[3] else "unreadable"
                messages.append(
                    ReceivedMessage(line[0], ConversationAddress(line[2], line[1]), line[3], kind)
                )
        return WebhookContent(tuple(messages), tuple(statuses))

    async def prepare(self, message: ReceivedMessage) -> PreparedMessage:
        self.prepared.append(message.text)
        return PreparedMessage(message.text, details=message.details)

    async def acknowledge(self, message: ReceivedMessage) -> None:
        self.seen.append(message.id)

    def split(self, text: str) -> tuple[str, ...]:
        return tuple(text.split("/")) if text else ()

    async def send(self, address: ConversationAddress, text: str) -> str:
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append((address.user, text))
        return f"out-{len(self.sent)}"

    async def ask_to_reply(self, address: ConversationAddress) -> str:
        raise ChannelRejected("A pigeon flies one way.")

    async def close(self) -> None:
        """Nothing."""
