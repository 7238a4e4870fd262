"""Answers one queue of the inbox: its next messages become one run, and the answer becomes messages.

A configured channel knows which messages belong to it, how they are encrypted, and which run they become.
All phone numbers can be tried one by one, so a plain hash hides nothing. People are identified by HMAC-SHA256
with a key of the operator (RFC 2104). Contents are encrypted with AES-256-GCM (RFC 5116) and bound to their
queue. Both keys are derived from one secret (HKDF, RFC 5869), separately for each channel.

Each step of an answer is stored before the next one begins:

1. Which messages are answered together.
2. The answer; then the contents of the messages are deleted. A crash before this step repeats the run.
3. Each message that the messenger has accepted. A crash during a send repeats that send.
4. The end; then the answer is deleted, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from astromesh.channels.base import (
    DELIVERY_STATES,
    AskAgent,
    Channel,
    ChannelRunRequest,
    ConversationAddress,
    DecidingChannel,
    DeliveryReport,
    InboundMessage,
    Inbox,
    LeasedQueue,
    MessageKind,
    PendingMessage,
    PreparedMessage,
    ReceivedMessage,
    StreamingChannel,
)
from astromesh.errors import (
    ApprovalRequired,
    AstromeshError,
    ChannelError,
    ChannelRejected,
    ConfigError,
    GuardrailBlocked,
    OutsideWindow,
    RateLimited,
    SessionBusy,
    ShuttingDown,
    StoreUnavailable,
    Unavailable,
)
from astromesh.logs import get_logger
from astromesh.storage.cipher import StoredCipher
from astromesh.telemetry.clock import Clock
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
        self, pending: PendingMessage, leased: LeasedQueue, address: ConversationAddress
    ) -> ReceivedMessage:
        """Raises: ConfigError: the message was encrypted with another key."""
        content = self.cipher.decrypt(pending.content, leased.queue)
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


#: most messages of one run, if a channel waits for the end of a burst
MAX_MESSAGES = 20
#: attempts before a run is given up (about ten minutes), and before a reply is (about six hours)
MAX_RUN_ATTEMPTS, MAX_SEND_ATTEMPTS = 15, 80
#: seconds between two checks whether a person has decided, and most remembered questions that wait for that
APPROVAL_PAUSE, MAX_APPROVAL_WAITS = 5.0, 1000
FIRST_PAUSE, MAX_RUN_PAUSE, MAX_SEND_PAUSE = 1.0, 60.0, 300.0
#: seconds that an answer waits until its question is marked as read
ACKNOWLEDGE_SECONDS = 1.0
#: seconds between two edits of an answer that is being made: Slack allows 50 in a minute
SHOW_SECONDS = 1.5
#: kinds of questions that buttons can answer
_DECIDABLE = ("approval", "unknown_outcome")
#: code of a report that only a template can reach the person
OUTSIDE_WINDOW = "outside_window"
_FAILED = DELIVERY_STATES.index("failed")
#: errors of runs that have not begun, so that a retry is safe
_NOT_BEGUN = (Unavailable, StoreUnavailable, SessionBusy, RateLimited)

log = get_logger("astromesh.channels")


class LiveReply:
    """Shows an answer while it is made, at most once in `SHOW_SECONDS`."""

    def __init__(self, channel: StreamingChannel, address: ConversationAddress, clock: Clock) -> None:
        self._channel, self._address, self._clock = channel, address, clock
        self._text = ""
        self._changed, self._showing = asyncio.Event(), asyncio.Lock()
        self._task = asyncio.create_task(self._show())

    def update(self, text: str) -> None:
        """Takes the answer so far."""
        self._text = text
        self._changed.set()

    async def close(self) -> None:
        """Shows nothing more. What is being shown is shown to its end, so that `send` can replace it."""
        async with self._showing:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _show(self) -> None:
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                async with self._showing:
                    await self._channel.show(self._address, self._text)
                await self._clock.sleep(SHOW_SECONDS)
        except ChannelError as error:  # the whole answer is sent at its end
            log.info("answer_not_shown", error=str(error))


class RetryLater(Exception):
    """The work is retried later.

    Args:
        seconds: until the next attempt.
        failed: whether this attempt counts as failed.
    """

    def __init__(self, seconds: float, *, failed: bool = True) -> None:
        self.seconds, self.counts_as_attempt = seconds, failed


class QueueLeaseLost(Exception):
    """Another process works on this queue."""


class Responder:
    """Answers leased queues.

    Args:
        holder: of the leases, unique to this process and start.

    Attributes:
        queues_in_runs: queues that wait for the end of their run; cancelling that wait loses nothing.
    """

    def __init__(self, inbox: Inbox, ask: AskAgent, clock: Clock, holder: str) -> None:
        self._inbox, self._ask, self._clock, self._holder = inbox, ask, clock, holder
        self.queues_in_runs: set[str] = set()
        #: questions whose runs wait for a person, by key; without pictures, which the runs have stored
        self._waiting: dict[str, ChannelRunRequest] = {}
        #: questions that were put to people: run and id
        self._questions: set[tuple[str, str]] = set()

    async def serve(self, configured: ConfiguredChannel, leased: LeasedQueue) -> None:
        """Answers the next messages of a queue and releases the queue.

        Raises:
            RetryLater: the caller releases the queue for a later attempt.
            QueueLeaseLost: another process works on the queue. AstromeshError: the store failed.
        """
        try:
            address = configured.address(leased)
            parts = await self._parts(configured, leased, address)
        except ConfigError as error:  # the messages wait until the operator sets the right key
            log.error("inbox_unreadable", channel=configured.name, queue=leased.queue, error=str(error))
            raise RetryLater(MAX_SEND_PAUSE) from error
        await self._deliver(configured, leased, address, parts)
        await self._inbox.finish(leased.queue, self._holder, self._clock.now())

    # -- the run -------------------------------------------------------------------------------------------

    async def _parts(
        self, configured: ConfiguredChannel, leased: LeasedQueue, address: ConversationAddress
    ) -> tuple[str, ...]:
        """Returns the messages of the answer: the stored ones if the queue was answered before."""
        if leased.reply is not None:
            return configured.reply(leased.reply, leased)
        pending = await self._next_messages(configured, leased, address)
        if not pending:
            return ()
        upto = pending[-1][0].seq
        self._require(await self._inbox.begin(leased.queue, self._holder, upto))
        parts = await self._answer(configured, leased, pending)
        encrypted = configured.cipher.encrypt({"parts": parts}, leased.queue)
        self._require(await self._inbox.answer(leased.queue, self._holder, encrypted, upto))
        return parts

    async def _next_messages(
        self, configured: ConfiguredChannel, leased: LeasedQueue, address: ConversationAddress
    ) -> Sequence[tuple[PendingMessage, ReceivedMessage]]:
        """Returns the messages to answer together: those from before a crash, else the first of one kind."""
        several = configured.setup.debounce > 0 or leased.upto > 0
        pending = await self._inbox.pending(leased.queue, MAX_MESSAGES if several else 1)
        leased_messages = [one for one in pending if one.seq <= leased.upto] or pending
        messages = [(one, configured.from_inbox(one, leased, address)) for one in leased_messages]
        return list(takewhile(lambda one: one[1].kind == messages[0][1].kind, messages))

    async def _answer(
        self,
        configured: ConfiguredChannel,
        leased: LeasedQueue,
        pending: Sequence[tuple[PendingMessage, ReceivedMessage]],
    ) -> tuple[str, ...]:
        messages = [message for _, message in pending]
        match messages[0].kind:
            case "unreadable":
                return configured.channel.split(configured.channel.unreadable_reply)
            case "fallback":
                await self._send_template(configured, leased, messages[0].address, 0)
                return ()
        key = pending[0][0].id
        if (question := self._waiting.pop(key, None)) is not None:
            return configured.channel.split(await self._live(configured, leased, question))
        acknowledging = asyncio.create_task(_acknowledge(configured, messages[-1]))
        try:
            prepared = [await configured.channel.prepare(message) for message in messages]
            trace = next((message.traceparent for message in messages if message.traceparent), "")
            question = configured.question(leased, messages[0].address, key, prepared, trace)
            return configured.channel.split(await self._live(configured, leased, question))
        finally:
            await asyncio.wait([acknowledging], timeout=ACKNOWLEDGE_SECONDS)
            acknowledging.cancel()

    async def _live(
        self, configured: ConfiguredChannel, leased: LeasedQueue, question: ChannelRunRequest
    ) -> str:
        """Runs the agent, and shows the answer while it is made where the channel can."""
        channel = configured.channel
        if not (isinstance(channel, StreamingChannel) and channel.streams):
            return await self._run(configured, leased, question)
        live = LiveReply(channel, configured.address(leased), self._clock)
        try:
            return await self._run(configured, leased, replace(question, on_text=live.update))
        finally:
            await live.close()

    async def _run(
        self, configured: ConfiguredChannel, leased: LeasedQueue, question: ChannelRunRequest
    ) -> str:
        self.queues_in_runs.add(leased.queue)
        try:
            return await self._ask(question)
        except GuardrailBlocked as refusal:
            return str(refusal)
        except ShuttingDown:
            raise
        except ApprovalRequired as paused:  # the run continues when a person has decided
            self._remember(question)
            await self._ask_decisions(configured, configured.address(leased), paused)
            raise RetryLater(APPROVAL_PAUSE, failed=False) from paused
        except _NOT_BEGUN as error:
            if leased.attempts < MAX_RUN_ATTEMPTS:
                log.warning("run_not_begun", channel=configured.name, agent=question.agent, error=str(error))
                raise RetryLater(backoff(leased.attempts, MAX_RUN_PAUSE)) from error
            return self._give_up(configured, question.agent, error)
        except AstromeshError as error:
            return self._give_up(configured, question.agent, error)
        finally:
            self.queues_in_runs.discard(leased.queue)

    async def _ask_decisions(
        self, configured: ConfiguredChannel, address: ConversationAddress, paused: ApprovalRequired
    ) -> None:
        """Puts the questions of a waiting run to the person, each once in this process."""
        channel = configured.channel
        if not isinstance(channel, DecidingChannel):
            return
        for question in paused.questions:
            key = (paused.run_id, str(question.get("question")))
            if question.get("kind") not in _DECIDABLE or key in self._questions:
                continue
            try:
                await channel.ask_decision(address, paused.run_id, question)
            except ChannelError as error:
                log.warning("question_not_sent", channel=configured.name, error=str(error))
                continue
            if len(self._questions) >= MAX_APPROVAL_WAITS:
                self._questions.clear()
            self._questions.add(key)

    def _remember(self, question: ChannelRunRequest) -> None:
        self._waiting[question.key] = replace(question, attachments=(), on_text=None)
        if len(self._waiting) > MAX_APPROVAL_WAITS:
            del self._waiting[next(iter(self._waiting))]

    def forget_principal(self, tenant: str, principal: str) -> None:
        """Drops everything of one person from memory."""
        of = (tenant, principal)
        for key in [k for k, q in self._waiting.items() if (q.caller.tenant_id, q.caller.user_id) == of]:
            del self._waiting[key]

    def _give_up(self, configured: ConfiguredChannel, agent: str, error: AstromeshError) -> str:
        log.error("run_given_up", channel=configured.name, agent=agent, code=error.code, run_id=error.run_id)
        return configured.setup.failure_reply

    # -- the answer ----------------------------------------------------------------------------------------

    async def _deliver(
        self,
        configured: ConfiguredChannel,
        leased: LeasedQueue,
        address: ConversationAddress,
        parts: Sequence[str],
    ) -> None:
        """Sends the parts that have not been sent, in order."""
        first = leased.sent if leased.reply is not None else 0
        attempts = leased.attempts
        for place in range(first, len(parts)):
            try:
                message_id = await configured.channel.send(address, parts[place])
            except OutsideWindow:
                await self._send_template(configured, leased, address, len(parts))
                return
            except ChannelRejected as error:
                log.error("reply_rejected", channel=configured.name, queue=leased.queue, error=str(error))
                return
            except ChannelError as error:
                if attempts >= MAX_SEND_ATTEMPTS:
                    log.error("reply_given_up", channel=configured.name, queue=leased.queue, error=str(error))
                    return
                log.warning("reply_delayed", channel=configured.name, queue=leased.queue, error=str(error))
                raise RetryLater(max(error.retry_after, backoff(attempts, MAX_SEND_PAUSE))) from error
            attempts = 0
            digest = await self._record_sent(configured, leased, message_id, place + 1)
            if digest and await self._inbox.delivery_status(digest) == (_FAILED, OUTSIDE_WINDOW):
                # the status of the message arrived before its id was stored
                await self._inbox.put([fallback_message(configured, address, message_id, self._clock.now())])

    async def _record_sent(
        self, configured: ConfiguredChannel, leased: LeasedQueue, message_id: str, sent: int
    ) -> str:
        """Stores that the parts up to `sent` were sent; returns the digest of the last one's id."""
        digest = configured.cipher.digest("sent", message_id) if message_id else ""
        report = DeliveryReport(digest, 0, self._clock.now())
        self._require(await self._inbox.record_sent(leased.queue, self._holder, sent, report))
        return digest

    async def _send_template(
        self, configured: ConfiguredChannel, leased: LeasedQueue, address: ConversationAddress, sent: int
    ) -> None:
        try:
            message_id = await configured.channel.ask_to_reply(address)
            log.warning("reply_outside_window", channel=configured.name, queue=leased.queue, template="sent")
            await self._record_sent(configured, leased, message_id, sent)
        except ChannelRejected as error:
            log.error("reply_outside_window", channel=configured.name, queue=leased.queue, error=str(error))
        except ChannelError as error:
            if leased.attempts < MAX_SEND_ATTEMPTS:
                raise RetryLater(max(error.retry_after, backoff(leased.attempts, MAX_SEND_PAUSE))) from error

    @staticmethod
    def _require(held: bool) -> None:
        if not held:
            raise QueueLeaseLost


async def _acknowledge(configured: ConfiguredChannel, message: ReceivedMessage) -> None:
    try:
        await configured.channel.acknowledge(message)
    except ChannelError as error:
        log.info("not_marked_as_read", channel=configured.name, error=str(error))


def fallback_message(
    configured: ConfiguredChannel, address: ConversationAddress, id: str, now: float
) -> InboundMessage:
    """Returns an internal message: the message with this id failed, and only a template can be delivered."""
    return configured.to_inbox(ReceivedMessage(f"fallback:{id}", address, kind="fallback"), now)


def backoff(attempts: int, longest: float) -> float:
    """Returns the seconds until the next attempt, doubled for each attempt."""
    return float(min(FIRST_PAUSE * 2 ** min(attempts, 20), longest))
