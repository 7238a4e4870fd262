"""The channel seam: people who write through a messenger, and the inbox that keeps what they wrote.

A channel knows one messenger's wire format and nothing else. What is kept, in which order it is answered
and when something is tried again is the runtime's, for all channels alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from astromesh.types import CallerContext, Image, JsonObject

#: where a message is on its way to a person, least first; a later state is never undone
State = Literal["accepted", "sent", "failed", "delivered", "read"]
STATES: tuple[State, ...] = ("accepted", "sent", "failed", "delivered", "read")
#: message: for the agent; unreadable: of a kind nobody can answer; fallback: ours, see `Channel.recall`
Kind = Literal["message", "unreadable", "fallback"]


class Webhook(NamedTuple):
    """A request to a channel's webhook. Header names in lower case; the body is raw, as it was signed."""

    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


class Address(NamedTuple):
    """A conversation's two ends: our address (a number's id) and the person's. The latter is never logged."""

    ours: str
    theirs: str


@dataclass(frozen=True, slots=True)
class Inbound:
    """One message of a person.

    Args:
        id: the messenger's, unique within the channel.
        text: what the agent is asked.
        about: what else the messenger said, JSON values only: kind, attachment, place, profile name …
        traceparent: where the trace of whoever passed it on stands (W3C Trace Context), or empty.
    """

    id: str
    address: Address
    text: str = ""
    kind: Kind = "message"
    about: JsonObject = field(default_factory=dict)
    traceparent: str = ""


class Status(NamedTuple):
    """What the messenger says about a message of ours.

    Args:
        outside_window: it failed because the person has not written for too long.
    """

    id: str
    address: Address
    state: State
    code: str = ""
    outside_window: bool = False


class Received(NamedTuple):
    """What one request of a webhook brought."""

    messages: tuple[Inbound, ...] = ()
    statuses: tuple[Status, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message as the agent gets it, with what had to be fetched for it."""

    text: str
    images: tuple[Image, ...] = ()
    about: JsonObject = field(default_factory=dict)


class Channel(Protocol):
    """One messenger. A `channels` plugin opens it; its name in channels.yaml stands in the webhook's path."""

    #: what keys for addresses are derived from where the operator gives no `identity_key`
    secret: str
    #: our addresses; what comes to any other is left alone. Empty: every one is ours
    addresses: Collection[str]
    #: the answer to what cannot be read
    unreadable_reply: str

    def challenge(self, request: Webhook) -> str:
        """The answer to the messenger's question whether this webhook is ours, as plain text.

        Raises:
            Forbidden: it does not know the verify token.
        """

    def verify(self, request: Webhook) -> None:
        """Raises Unauthorized where the request is not signed with our secret."""

    def parse(self, body: bytes) -> Received:
        """The messages and statuses in their order; what is not understood is left out.

        Raises:
            InvalidInput: the body is not of the format at all.
        """

    async def prepare(self, message: Inbound) -> Prepared:
        """Fetches what belongs to a message. What cannot be fetched is told in the text, never raised."""

    async def noticed(self, message: Inbound) -> None:
        """Shows the person that the message was seen and is being answered.

        Raises:
            ChannelError: nobody minds.
        """

    def split(self, text: str) -> tuple[str, ...]:
        """A reply as messages, each within the messenger's limit; none for an empty text."""

    async def send(self, address: Address, text: str) -> str:
        """Sends one message and answers its id, empty where it has none.

        Raises:
            ChannelRejected: it will never be taken. OutsideWindow: only `recall` can reach the person.
            ChannelError: another try may work.
        """

    async def recall(self, address: Address) -> str:
        """Asks a person who has not written for long to write again, and answers the message's id.

        Raises:
            ChannelRejected: nothing is set up for that. ChannelError: as `send`.
        """

    async def close(self) -> None: ...


# -- how a channel's messages become runs -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Question:
    """One run that a channel asks for.

    Args:
        key: the same for the same messages, also after a crash: the idempotency key.
        context: variables for the prompt's template.
        traceparent: of the first message that came with one.
    """

    agent: str
    query: str
    session_id: str
    caller: CallerContext
    key: str
    context: Mapping[str, object] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    images: tuple[Image, ...] = ()
    traceparent: str = ""


class Ask(Protocol):
    """Runs an agent and answers what it says; injected, so that the desk does not know how runs are made."""

    async def __call__(self, question: Question) -> str: ...


# -- the inbox ----------------------------------------------------------------------------------------------


class Letter(NamedTuple):
    """A message as it is kept. Ids are keyed digests, contents are sealed: nothing here names a person.

    Args:
        queue: of our address and the person; its letters are answered in their order.
        address: sealed; the latest one is kept with the queue.
        due_at: seconds since the epoch; every letter of a queue moves the whole queue to its own.
    """

    channel: str
    id: str
    queue: str
    tenant: str
    principal: str
    address: bytes
    content: bytes
    now: float
    due_at: float


class Taken(NamedTuple):
    """A queue whose next letters are ours to answer, until the lease ends.

    Args:
        attempts: how often this was tried in vain.
        reply: sealed; what was answered already and is still to be sent, from part `sent` on.
        upto: last letter of what is being answered, 0 where nothing was begun.
    """

    queue: str
    channel: str
    principal: str
    tenant: str
    address: bytes
    attempts: int
    reply: bytes | None
    sent: int
    upto: int


class Kept(NamedTuple):
    """A letter that waits for its answer. `seq` grows along the queue."""

    seq: int
    id: str
    content: bytes


class Report(NamedTuple):
    """What became of a message of ours: digest of its id, and its place in `STATES`."""

    id: str
    state: int
    now: float
    code: str = ""


class Inbox(Protocol):
    """Keeps what came in until it is answered. Every method is one transaction; done means on disk."""

    async def put(self, letters: Sequence[Letter]) -> int:
        """Keeps the letters that are not known yet, and answers how many these were."""

    async def take(
        self, holder: str, channels: Sequence[str], now: float, until: float, limit: int
    ) -> tuple[Taken, ...]:
        """Leases queues of these channels that are due and that nobody holds, the longest due first."""

    async def next_due(self, channels: Sequence[str]) -> float | None:
        """When the next queue can be taken, in seconds since the epoch; None where nothing waits."""

    async def renew(self, holder: str, until: float) -> frozenset[str]:
        """Prolongs every lease of a holder, and answers which queues these are."""

    async def waiting(self, queue: str, limit: int) -> tuple[Kept, ...]:
        """The first letters of a queue that wait for an answer."""

    async def begin(self, queue: str, holder: str, upto: int) -> bool:
        """Notes which letters are answered together, so that a crash changes nothing; False: lease lost."""

    async def answer(self, queue: str, holder: str, reply: bytes, upto: int) -> bool:
        """Keeps the answer to the letters up to `upto`, whose contents are forgotten; False: lease lost."""

    async def sent(self, queue: str, holder: str, sent: int, report: Report) -> bool:
        """Notes that parts up to `sent` are on their way, the last with this id; False: the lease is lost."""

    async def settle(self, queue: str, holder: str, now: float) -> None:
        """Forgets the reply, and gives the queue back; it is due again where letters wait."""

    async def release(self, queue: str, holder: str, due_at: float, attempts: int) -> None:
        """Gives the queue back as it is, to be taken again from `due_at` on."""

    async def report(self, reports: Sequence[Report]) -> tuple[bool, ...]:
        """Notes what became of messages; for each, whether it is one of ours and this was news."""

    async def fate(self, id: str) -> tuple[int, str]:
        """What became of a message: its place in `STATES`, and the code it failed with."""

    async def erase(self, tenant: str, principal: str) -> int:
        """Deletes all of one person, and answers how many letters and queues that was."""

    async def expire(self, before: float) -> int:
        """Deletes what was answered before a time, in seconds since the epoch."""

    async def ping(self) -> None:
        """Raises StoreUnavailable where the store does not answer."""

    async def close(self) -> None: ...


class Desk(Protocol):
    """Where webhooks are received, and the inbox is worked off."""

    def challenge(self, channel: str, request: Webhook) -> str:
        """See `Channel.challenge`. Raises: ChannelNotFound."""

    async def receive(self, channel: str, request: Webhook) -> None:
        """Keeps what a webhook brings; once this is done, it is on disk.

        Raises:
            ChannelNotFound: there is no such channel. Unauthorized: it is not signed.
            InvalidInput: it is not of the messenger's format. StoreUnavailable: it is to be sent again.
        """

    async def erase(self, tenant: str, principal: str) -> int:
        """Deletes all that is kept of one person."""

    async def close(self) -> None:
        """Takes nothing new, lets end what is in work, and gives back the rest."""
