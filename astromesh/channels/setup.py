"""A configured channel: which messages belong to it, how they are encrypted, and which run they become.

All phone numbers can be tried one by one, so a plain hash hides nothing. People are identified by HMAC-SHA256
with a key of the operator (RFC 2104). Contents are encrypted with AES-256-GCM (RFC 5116) and bound to their
queue. Both keys are derived from one secret (HKDF, RFC 5869), separately for each channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astromesh.channels.base import (
    Channel,
    ChannelRunRequest,
    ConversationAddress,
    InboundMessage,
    LeasedQueue,
    MessageKind,
    PendingMessage,
    PreparedMessage,
    ReceivedMessage,
)
from astromesh.storage.cipher import StoredCipher
from astromesh.types import CallerContext, JsonObject

_OTHER_KEY = (
    "The inbox holds messages that were encrypted with another identity_key. "
    "Set that key again, or erase them."
)


@dataclass(frozen=True, slots=True)
class ChannelSetup:
    """The keys of channels.yaml that every channel has.

    Args:
        agents: by our address; `default_agent` answers all other addresses.
        debounce: seconds without a further message before an answer begins.
        lease: seconds after which another process takes over the queues of a process that has stopped.
    """

    default_agent: str
    agents: Mapping[str, str] = field(default_factory=dict)
    debounce: float = 0.0
    tenant: str = "default"
    identity_key: str = ""
    failure_reply: str = ""
    lease: float = 15.0


class ConfiguredChannel:
    """A channel with its setup and its cipher."""

    def __init__(self, name: str, channel: Channel, setup: ChannelSetup) -> None:
        self.name, self.channel, self.setup = name, channel, setup
        self.cipher = StoredCipher(setup.identity_key or channel.secret, name, _OTHER_KEY)
        self._ours = {*channel.addresses, *setup.agents} if channel.addresses else set[str]()

    def is_ours(self, address: ConversationAddress) -> bool:
        return not self._ours or address.account in self._ours

    # -- in ------------------------------------------------------------------------------------------------

    def to_inbox(self, message: ReceivedMessage, now: float) -> InboundMessage:
        """Returns a message as it is stored: nothing in it can be read without the key."""
        address = message.address
        queue = self.queue(address)
        content = {"id": message.id, "text": message.text, "kind": message.kind, "about": message.details}
        if message.traceparent:
            content["traceparent"] = message.traceparent
        return InboundMessage(
            channel=self.name,
            id=self.cipher.digest("message", message.id),
            queue=queue,
            tenant=self.setup.tenant,
            principal=self.principal(address.user),
            address=self.cipher.encrypt(
                {"ours": address.account, "theirs": address.user, "thread": address.thread}, queue
            ),
            content=self.cipher.encrypt(content, queue),
            now=now,
            due_at=now + (self.setup.debounce if message.kind == "message" else 0.0),
        )

    def queue(self, address: ConversationAddress) -> str:
        """Returns the name of the queue of a conversation."""
        return self.cipher.digest("queue", *address[:2], *filter(None, [address.thread]))

    def address(self, leased: LeasedQueue) -> ConversationAddress:
        """Raises: ConfigError: the message was encrypted with another key."""
        ends = self.cipher.decrypt(leased.address, leased.queue)
        return ConversationAddress(ends["ours"], ends["theirs"], ends.get("thread", ""))

    def principal(self, user: str) -> str:
        """Returns the pseudonym of a person."""
        return f"{self.name}:{self.cipher.digest('person', user)}"

    def caller(self, user: str) -> CallerContext:
        """Returns a person as the caller who decides for a run."""
        return CallerContext(user_id=self.principal(user), tenant_id=self.setup.tenant)

    def from_inbox(
        self, kept: PendingMessage, leased: LeasedQueue, address: ConversationAddress
    ) -> ReceivedMessage:
        """Raises: ConfigError: the message was encrypted with another key."""
        content = self.cipher.decrypt(kept.content, leased.queue)
        kind: MessageKind = content["kind"]
        trace = content.get("traceparent", "")
        return ReceivedMessage(content["id"], address, content["text"], kind, content["about"], trace)

    def reply(self, sealed: bytes, leased: LeasedQueue) -> tuple[str, ...]:
        return tuple(self.cipher.decrypt(sealed, leased.queue)["parts"])

    # -- the run -------------------------------------------------------------------------------------------

    def question(
        self,
        leased: LeasedQueue,
        address: ConversationAddress,
        key: str,
        prepared: list[PreparedMessage],
        traceparent: str = "",
    ) -> ChannelRunRequest:
        """Joins several messages into one run: texts by newline, pictures in order."""
        agent = self.setup.agents.get(address.account, self.setup.default_agent)
        caller = CallerContext(
            user_id=leased.principal,
            tenant_id=leased.tenant,
            scopes=frozenset({f"agents:run:{agent}"}),
            metadata={"channel": self.name},
        )
        return ChannelRunRequest(
            agent=agent,
            query="\n".join(one.text for one in prepared),
            session_id=f"{self.name}:{leased.queue}",
            caller=caller,
            key=key,
            context=_prompt_context(self.name, [one.details for one in prepared]),
            metadata={"channel": self.name, "message": key},
            attachments=tuple(image for one in prepared for image in one.attachments),
            traceparent=traceparent,
        )


def _prompt_context(channel: str, messages: list[JsonObject]) -> dict[str, Any]:
    names = [about["profile_name"] for about in messages if about.get("profile_name")]
    return {"channel": channel, "profile_name": names[-1] if names else "", "messages": messages}
