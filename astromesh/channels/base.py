"""The protocols of channels: people who write through a messenger, and the inbox that stores their messages.

A channel knows only the wire format of one messenger. The inbox worker stores, orders and retries messages
for all channels alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from astromesh.types import Attachment, CallerContext, JsonObject

#: delivery of a message, from the first state to the last; no later state is undone
DeliveryState = Literal["accepted", "sent", "failed", "delivered", "read"]
DELIVERY_STATES: tuple[DeliveryState, ...] = ("accepted", "sent", "failed", "delivered", "read")
#: message: for the agent; unreadable: of an unknown kind; fallback: internal, see `Channel.ask_to_reply`
MessageKind = Literal["message", "unreadable", "fallback"]


class WebhookRequest(NamedTuple):
    """A request to a channel's webhook. Header names in lower case; the body is raw, as it was signed."""

    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


class ConversationAddress(NamedTuple):
    """The two ends of a conversation: our address, e.g. a number's id, and the person's (never logged).

    Args:
        thread: of the messenger, if one person has several conversations.
    """

    account: str
    user: str
    thread: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One message of a person.

    Args:
        id: the messenger's, unique within the channel.
        text: the agent's query.
        details: further JSON values of the messenger: kind, attachment, place, profile name …
        traceparent: of the sender of the webhook (W3C Trace Context), or empty.
    """

    id: str
    address: ConversationAddress
    text: str = ""
    kind: MessageKind = "message"
    details: JsonObject = field(default_factory=dict)
    traceparent: str = ""


class DeliveryStatus(NamedTuple):
    """The delivery status of a sent message.

    Args:
        outside_window: it failed because the person has not written for too long.
    """

    id: str
    address: ConversationAddress
    state: DeliveryState
    code: str = ""
    outside_window: bool = False


class ChannelDecision(NamedTuple):
    """What a person has decided for a waiting run, e.g. by a button.

    Args:
        question: its id; empty: the oldest one.
        by: the messenger's id of the person.
        message: the messenger's id of the message with the buttons.
    """

    address: ConversationAddress
    run_id: str
    question: str
    approved: bool
    by: str
    message: str = ""


class WebhookContent(NamedTuple):
    """The content of one webhook request.

    Args:
        answer: what the messenger wants to read in the response.
    """

    messages: tuple[ReceivedMessage, ...] = ()
    statuses: tuple[DeliveryStatus, ...] = ()
    decisions: tuple[ChannelDecision, ...] = ()
    answer: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """A message as the agent receives it, with its fetched attachments."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    details: JsonObject = field(default_factory=dict)


class Channel(Protocol):
    """One messenger. A `channels` plugin opens it; the webhook's path contains its name in channels.yaml."""

    #: keys for addresses are derived from it if the operator sets no `identity_key`
    secret: str
    #: our addresses; messages to other addresses are ignored. Empty: all are ours
    addresses: Collection[str]
    #: the answer to messages that cannot be read
    unreadable_reply: str

    def challenge(self, request: WebhookRequest) -> str:
        """Returns the answer to the messenger's verification request, as plain text.

        Raises:
            Forbidden: it does not know the verify token.
        """

    def verify(self, request: WebhookRequest) -> None:
        """Raises Unauthorized if the request is not signed with our secret."""

    def parse(self, body: bytes) -> WebhookContent:
        """Returns messages and statuses in order; unknown content is ignored.

        Raises:
            InvalidInput: the body is not of the messenger's format.
        """

    async def prepare(self, message: ReceivedMessage) -> PreparedMessage:
        """Fetches the attachments of a message. The text names an attachment that cannot be fetched."""

    async def acknowledge(self, message: ReceivedMessage) -> None:
        """Shows the person that the message was seen and is being answered.

        Raises:
            ChannelError: it could not be shown; the answer continues.
        """

    def split(self, text: str) -> tuple[str, ...]:
        """Splits a reply into messages within the messenger's limit; an empty text has none."""

    async def send(self, address: ConversationAddress, text: str) -> str:
        """Sends one message; returns its id, or an empty text if it has none.

        Raises:
            ChannelRejected: a retry cannot work. OutsideWindow: only `ask_to_reply` can reach the person.
            ChannelError: a retry may work.
        """

    async def ask_to_reply(self, address: ConversationAddress) -> str:
        """Asks a person who has not written for too long to write again; returns the message's id.

        Raises:
            ChannelRejected: no template is configured. ChannelError: as `send`.
        """

    async def close(self) -> None: ...


@runtime_checkable
class StreamingChannel(Protocol):
    """A channel that can show an answer while it is made."""

    #: whether it does
    streams: bool

    async def show(self, address: ConversationAddress, text: str) -> None:
        """Shows the answer so far. The next `send` to the address replaces it.

        Raises:
            ChannelError: it could not be shown; the answer continues.
        """


@runtime_checkable
class DecidingChannel(Protocol):
    """A channel that can ask a person to decide for a waiting run."""

    async def ask_decision(self, address: ConversationAddress, run_id: str, question: JsonObject) -> None:
        """Asks. Raises: ChannelError: it could not ask; others may still decide."""

    def may_decide(self, decision: ChannelDecision) -> bool:
        """Whether the operator lets this person decide."""

    async def show_decision(self, decision: ChannelDecision, outcome: str) -> None:
        """Shows what came of a decision. Raises: ChannelError: it could not be shown."""


# -- how a channel's messages become runs -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelRunRequest:
    """One run that a channel asks for.

    Args:
        key: the idempotency key: the same for the same messages, also after a crash.
        context: variables for the prompt's template.
        traceparent: of the first message that has one.
        on_text: called with the answer so far, while it is made; None: nobody sees it.
    """

    agent: str
    query: str
    session_id: str
    caller: CallerContext
    key: str
    context: Mapping[str, object] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    traceparent: str = ""
    on_text: Callable[[str], None] | None = None


#: runs an agent and returns its answer; injected, so that the inbox worker does not import the runtime
AskAgent: TypeAlias = Callable[[ChannelRunRequest], Awaitable[str]]
#: decides for a waiting run: whose run it is, who decides, and what
DecideRun: TypeAlias = Callable[[CallerContext, CallerContext, ChannelDecision], Awaitable[None]]


# -- the inbox ----------------------------------------------------------------------------------------------


class InboundMessage(NamedTuple):
    """A message as it is stored. Ids are keyed digests, contents are encrypted: nothing here names a person.

    Args:
        queue: of our address and the person; its messages are answered in their order.
        address: encrypted; the queue stores the latest one.
        due_at: seconds since the epoch; every message sets the time of its whole queue.
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


class LeasedQueue(NamedTuple):
    """A queue whose next messages this process answers until the lease ends.

    Args:
        attempts: failed attempts so far.
        reply: encrypted; an answer whose parts from `sent` on have not been sent.
        upto: last message that is being answered, 0 if no answer has begun.
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


class PendingMessage(NamedTuple):
    """A message that waits for its answer. `seq` grows along the queue."""

    seq: int
    id: str
    content: bytes


class DeliveryReport(NamedTuple):
    """The state of a sent message: digest of its id, and its index in `DELIVERY_STATES`."""

    id: str
    state: int
    now: float
    code: str = ""


class ChannelBacklog(NamedTuple):
    """The messages of a channel that wait for an answer, and the people whose answer is tried again."""

    waiting: int = 0
    retried: int = 0


class Inbox(Protocol):
    """Stores messages until they are answered. Every method is one transaction, on disk when it returns."""

    async def put(self, messages: Sequence[InboundMessage]) -> int:
        """Stores the messages that are new, and returns how many."""

    async def take(
        self, holder: str, channels: Sequence[str], now: float, until: float, limit: int
    ) -> tuple[LeasedQueue, ...]:
        """Leases free queues of these channels that are due, the longest due first."""

    async def next_due(self, channels: Sequence[str]) -> float | None:
        """Returns when the next queue is due, in seconds since the epoch, or None if no message waits."""

    async def backlog(self) -> Mapping[str, ChannelBacklog]:
        """Returns what waits, by channel; a channel for which nothing waits may be missing."""

    async def renew(self, holder: str, until: float) -> frozenset[str]:
        """Renews every lease of a holder, and returns its queues."""

    async def pending(self, queue: str, limit: int) -> tuple[PendingMessage, ...]:
        """Returns the first messages of a queue that wait for an answer."""

    async def begin(self, queue: str, holder: str, upto: int) -> bool:
        """Stores which messages are answered together, so that a retry after a crash answers the same.

        Returns False if the lease is lost.
        """

    async def answer(self, queue: str, holder: str, reply: bytes, upto: int) -> bool:
        """Stores the answer to the messages up to `upto` and deletes their contents.

        Returns False if the lease is lost.
        """

    async def record_sent(self, queue: str, holder: str, sent: int, report: DeliveryReport) -> bool:
        """Stores that the parts up to `sent` were sent. Returns False if the lease is lost."""

    async def finish(self, queue: str, holder: str, now: float) -> None:
        """Deletes the reply and releases the queue, which is due again if messages wait."""

    async def release(self, queue: str, holder: str, due_at: float, attempts: int) -> None:
        """Releases the queue unchanged; it is due again at `due_at`."""

    async def retry_now(self, queue: str, now: float) -> None:
        """Makes a queue due that waits for something else than a failed attempt."""

    async def release_holder(self, holder: str) -> None:
        """Releases every queue of a holder that has ended; their times do not change."""

    async def report(self, reports: Sequence[DeliveryReport]) -> tuple[bool, ...]:
        """Stores delivery states. Returns for each whether the message is known and the state is new."""

    async def delivery_status(self, id: str) -> tuple[int, str]:
        """Returns the state of a message: its index in `DELIVERY_STATES`, and the code of a failure."""

    async def erase(self, tenant: str, principal: str) -> int:
        """Deletes everything of one person, and returns the number of messages and queues."""

    async def expire(self, before: float) -> int:
        """Deletes messages that were answered before a time, in seconds since the epoch."""

    async def ping(self) -> None:
        """Raises StoreUnavailable if the store does not answer."""

    async def close(self) -> None: ...


class InboxWorker(Protocol):
    """Receives webhooks and answers the inbox."""

    def challenge(self, channel: str, request: WebhookRequest) -> str:
        """See `Channel.challenge`. Raises: ChannelNotFound."""

    async def receive(self, channel: str, request: WebhookRequest) -> JsonObject:
        """Stores the content of a webhook, on disk when it returns. Returns what the messenger wants to read.

        Raises:
            ChannelNotFound: there is no such channel. Unauthorized: it is not signed.
            InvalidInput: it is not of the messenger's format. StoreUnavailable: the messenger sends it again.
        """

    async def backlog(self) -> Mapping[str, ChannelBacklog]:
        """See `Inbox.backlog`."""

    async def erase(self, tenant: str, principal: str) -> int:
        """Deletes everything that is stored of one person."""

    async def close(self) -> None:
        """Stops accepting work, waits for active work, and releases the rest."""
