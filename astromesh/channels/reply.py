"""Answers one queue of the inbox: its next messages become one run, and the answer becomes messages.

Each step is stored before the next one begins:

1. Which messages are answered together.
2. The answer; then the contents of the messages are deleted. A crash before this step repeats the run.
3. Each message that the messenger has accepted. A crash during a send repeats that send.
4. The end; then the answer is deleted, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import structlog

from astromesh.channels.base import (
    DELIVERY_STATES,
    AskAgent,
    ChannelRunRequest,
    ConversationAddress,
    DeliveryReport,
    InboundMessage,
    Inbox,
    LeasedQueue,
    PendingMessage,
    ReceivedMessage,
)
from astromesh.channels.setup import ConfiguredChannel
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
from astromesh.telemetry.clock import Clock

#: messages of one run at most, where a channel waits for the end of a burst
MAX_MESSAGES = 20
#: tries before a run is given up, and before a reply is: about ten minutes, and six hours
MAX_RUN_ATTEMPTS, MAX_SEND_ATTEMPTS = 15, 80
#: seconds between two polls whether a person has decided, and questions that are known to wait for that
APPROVAL_PAUSE, MAX_APPROVAL_WAITS = 5.0, 1000
FIRST_PAUSE, MAX_RUN_PAUSE, MAX_SEND_PAUSE = 1.0, 60.0, 300.0
#: seconds that an answer waits for its question to be marked as read
ACKNOWLEDGE_SECONDS = 1.0
#: code under which a report says that only a template would have arrived
OUTSIDE_WINDOW = "outside_window"
_FAILED = DELIVERY_STATES.index("failed")
#: what says that a run has not begun, so that it may be tried again
_NOT_BEGUN = (Unavailable, StoreUnavailable, SessionBusy, RateLimited)

log = structlog.get_logger("astromesh.channels")


class RetryLater(Exception):
    """The work is retried later.

    Args:
        seconds: until the next attempt.
        failed: whether this try counts as one in vain.
    """

    def __init__(self, seconds: float, *, failed: bool = True) -> None:
        self.seconds, self.counts_as_attempt = seconds, failed


class QueueLeaseLost(Exception):
    """Another process works on this queue."""


class Responder:
    """Args: holder: of the leases, unique to this process and start.

    Attributes:
        asking: queues whose run is being waited for; nothing is lost where that ends in the middle.
    """

    def __init__(self, inbox: Inbox, ask: AskAgent, clock: Clock, holder: str) -> None:
        self._inbox, self._ask, self._clock, self._holder = inbox, ask, clock, holder
        self.queues_in_runs: set[str] = set()
        #: questions whose runs wait for a person, by their key; the runs have the pictures
        self._waiting: dict[str, ChannelRunRequest] = {}

    async def serve(self, post: ConfiguredChannel, taken: LeasedQueue) -> None:
        """Returns what is next in a queue, and gives the queue back.

        Raises:
            Later: it is to be released to be tried again. LeaseEnded: it is not ours any more.
            AstromeshError: the store failed.
        """
        try:
            address = post.address(taken)
            parts = await self._parts(post, taken, address)
        except ConfigError as error:  # kept until the operator has put that right
            log.error("inbox_unreadable", channel=post.name, queue=taken.queue, error=str(error))
            raise RetryLater(MAX_SEND_PAUSE) from error
        await self._deliver(post, taken, address, parts)
        await self._inbox.finish(taken.queue, self._holder, self._clock.now())

    # -- the run -------------------------------------------------------------------------------------------

    async def _parts(
        self, post: ConfiguredChannel, taken: LeasedQueue, address: ConversationAddress
    ) -> tuple[str, ...]:
        """The messages of the answer; of a queue that was answered already, as they were kept."""
        if taken.reply is not None:
            return post.reply(taken.reply, taken)
        kept = await self._next_messages(post, taken, address)
        if not kept:
            return ()
        self._require(await self._inbox.begin(taken.queue, self._holder, kept[-1][0].seq))
        parts = await self._answer(post, taken, kept)
        sealed = post.cipher.encrypt({"parts": parts}, taken.queue)
        self._require(await self._inbox.answer(taken.queue, self._holder, sealed, kept[-1][0].seq))
        return parts

    async def _next_messages(
        self, post: ConfiguredChannel, taken: LeasedQueue, address: ConversationAddress
    ) -> Sequence[tuple[PendingMessage, ReceivedMessage]]:
        """The messages that are answered together: those of before a crash, else of one kind in a row."""
        several = post.setup.debounce > 0 or taken.upto > 0
        kept = await self._inbox.pending(taken.queue, MAX_MESSAGES if several else 1)
        begun = [one for one in kept if one.seq <= taken.upto] or kept
        messages = [(one, post.from_inbox(one, taken, address)) for one in begun]
        return list(takewhile(lambda one: one[1].kind == messages[0][1].kind, messages))

    async def _answer(
        self,
        post: ConfiguredChannel,
        taken: LeasedQueue,
        kept: Sequence[tuple[PendingMessage, ReceivedMessage]],
    ) -> tuple[str, ...]:
        messages = [message for _, message in kept]
        match messages[0].kind:
            case "unreadable":
                return post.channel.split(post.channel.unreadable_reply)
            case "fallback":
                await self._send_template(post, taken, messages[0].address, 0)
                return ()
        key = kept[0][0].id
        if (question := self._waiting.pop(key, None)) is not None:
            return post.channel.split(await self._run(post, taken, question))
        noticing = asyncio.create_task(_acknowledge(post, messages[-1]))
        try:
            prepared = [await post.channel.prepare(message) for message in messages]
            trace = next((message.traceparent for message in messages if message.traceparent), "")
            question = post.question(taken, messages[0].address, key, prepared, trace)
            return post.channel.split(await self._run(post, taken, question))
        finally:
            await asyncio.wait([noticing], timeout=ACKNOWLEDGE_SECONDS)
            noticing.cancel()

    async def _run(self, post: ConfiguredChannel, taken: LeasedQueue, question: ChannelRunRequest) -> str:
        self.queues_in_runs.add(taken.queue)
        try:
            return await self._ask(question)
        except GuardrailBlocked as refusal:
            return str(refusal)
        except ShuttingDown:
            raise
        except ApprovalRequired as paused:  # the answer comes when somebody has decided
            self._remember(question)
            raise RetryLater(APPROVAL_PAUSE, failed=False) from paused
        except _NOT_BEGUN as error:
            if taken.attempts < MAX_RUN_ATTEMPTS:
                log.warning("run_not_begun", channel=post.name, agent=question.agent, error=str(error))
                raise RetryLater(backoff(taken.attempts, MAX_RUN_PAUSE)) from error
            return self._give_up(post, question.agent, error)
        except AstromeshError as error:
            return self._give_up(post, question.agent, error)
        finally:
            self.queues_in_runs.discard(taken.queue)

    def _remember(self, question: ChannelRunRequest) -> None:
        self._waiting[question.key] = replace(question, images=())
        if len(self._waiting) > MAX_APPROVAL_WAITS:
            del self._waiting[next(iter(self._waiting))]

    def forget_principal(self, tenant: str, principal: str) -> None:
        """Holds nothing of a person any more."""
        of = (tenant, principal)
        for key in [k for k, q in self._waiting.items() if (q.caller.tenant_id, q.caller.user_id) == of]:
            del self._waiting[key]

    def _give_up(self, post: ConfiguredChannel, agent: str, error: AstromeshError) -> str:
        log.error("run_given_up", channel=post.name, agent=agent, code=error.code, run_id=error.run_id)
        return post.setup.failure_reply

    # -- the answer ----------------------------------------------------------------------------------------

    async def _deliver(
        self, post: ConfiguredChannel, taken: LeasedQueue, address: ConversationAddress, parts: Sequence[str]
    ) -> None:
        """Sends what was not sent yet, in order."""
        first = taken.sent if taken.reply is not None else 0
        attempts = taken.attempts
        for place in range(first, len(parts)):
            try:
                own = await post.channel.send(address, parts[place])
            except OutsideWindow:
                await self._send_template(post, taken, address, len(parts))
                return
            except ChannelRejected as error:
                log.error("reply_rejected", channel=post.name, queue=taken.queue, error=str(error))
                return
            except ChannelError as error:
                if attempts >= MAX_SEND_ATTEMPTS:
                    log.error("reply_given_up", channel=post.name, queue=taken.queue, error=str(error))
                    return
                log.warning("reply_delayed", channel=post.name, queue=taken.queue, error=str(error))
                raise RetryLater(max(error.retry_after, backoff(attempts, MAX_SEND_PAUSE))) from error
            attempts = 0
            await self._record_sent(post, taken, address, own, place + 1)

    async def _record_sent(
        self, post: ConfiguredChannel, taken: LeasedQueue, address: ConversationAddress, id: str, sent: int
    ) -> None:
        digest = post.cipher.digest("sent", id) if id else ""
        report = DeliveryReport(digest, 0, self._clock.now())
        self._require(await self._inbox.record_sent(taken.queue, self._holder, sent, report))
        if digest and await self._inbox.delivery_status(digest) == (_FAILED, OUTSIDE_WINDOW):
            await self._inbox.put(
                [fallback_message(post, address, id, self._clock.now())]
            )  # its status was faster

    async def _send_template(
        self, post: ConfiguredChannel, taken: LeasedQueue, address: ConversationAddress, sent: int
    ) -> None:
        try:
            own = await post.channel.ask_to_reply(address)
            log.warning("reply_outside_window", channel=post.name, queue=taken.queue, template="sent")
            digest = post.cipher.digest("sent", own) if own else ""
            report = DeliveryReport(digest, 0, self._clock.now())
            self._require(await self._inbox.record_sent(taken.queue, self._holder, sent, report))
        except ChannelRejected as error:
            log.error("reply_outside_window", channel=post.name, queue=taken.queue, error=str(error))
        except ChannelError as error:
            if taken.attempts < MAX_SEND_ATTEMPTS:
                raise RetryLater(max(error.retry_after, backoff(taken.attempts, MAX_SEND_PAUSE))) from error

    @staticmethod
    def _require(held: bool) -> None:
        if not held:
            raise QueueLeaseLost


async def _acknowledge(post: ConfiguredChannel, message: ReceivedMessage) -> None:
    try:
        await post.channel.acknowledge(message)
    except ChannelError as error:
        log.info("not_marked_as_read", channel=post.name, error=str(error))


def fallback_message(
    post: ConfiguredChannel, address: ConversationAddress, id: str, now: float
) -> InboundMessage:
    """A message to ourselves: the message with this id never arrived, and only a template will."""
    return post.to_inbox(ReceivedMessage(f"fallback:{id}", address, kind="fallback"), now)


def backoff(attempts: int, longest: float) -> float:
    """Seconds before the next try: doubled each time."""
    return float(min(FIRST_PAUSE * 2 ** min(attempts, 20), longest))
