"""Answers one queue: its next letters become one run, its answer becomes messages.

Each step is kept before the next one begins:

1. Which letters are answered together.
2. What the answer is; then the letters' contents are forgotten. A crash before this repeats the run.
3. Each message that the messenger has taken. A crash while one is being sent sends that one again.
4. That all is done; then the answer is forgotten, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import structlog

from astromesh.abc.channel import STATES, Address, Ask, Inbound, Inbox, Kept, Letter, Question, Report, Taken
from astromesh.abc.clock import Clock
from astromesh.channels.post import Post
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

#: letters of one run at most, where a channel waits for the end of a burst
MOST_TOGETHER = 20
#: tries before a run is given up, and before a reply is: about ten minutes, and six hours
MOST_RUNS, MOST_SENDS = 15, 80
#: seconds between two looks whether a person has decided, and questions that are known to wait for that
APPROVAL_PAUSE, MOST_WAITING = 5.0, 1000
FIRST_PAUSE, LONGEST_RUN_PAUSE, LONGEST_SEND_PAUSE = 1.0, 60.0, 300.0
#: seconds that an answer waits for its question to be marked as read
NOTICE_SECONDS = 1.0
#: code under which a report says that only a template would have arrived
OUTSIDE = "outside_window"
_FAILED = STATES.index("failed")
#: what says that a run has not begun, so that it may be tried again
_NOT_BEGUN = (Unavailable, StoreUnavailable, SessionBusy, RateLimited)

log = structlog.get_logger("astromesh.channels")


class Later(Exception):
    """It could not be done now.

    Args:
        seconds: until the next try.
        failed: whether this try counts as one in vain.
    """

    def __init__(self, seconds: float, *, failed: bool = True) -> None:
        self.seconds, self.failed = seconds, failed


class LeaseEnded(Exception):
    """Somebody else works on this queue."""


class Clerk:
    """Args: holder: of the leases, unique to this process and start.

    Attributes:
        asking: queues whose run is being waited for; nothing is lost where that ends in the middle.
    """

    def __init__(self, inbox: Inbox, ask: Ask, clock: Clock, holder: str) -> None:
        self._inbox, self._ask, self._clock, self._holder = inbox, ask, clock, holder
        self.asking: set[str] = set()
        #: questions whose runs wait for a person, by their key; the runs have the pictures
        self._waiting: dict[str, Question] = {}

    async def serve(self, post: Post, taken: Taken) -> None:
        """Answers what is next in a queue, and gives the queue back.

        Raises:
            Later: it is to be given back to be tried again. LeaseEnded: it is not ours any more.
            AstromeshError: the store failed.
        """
        try:
            address = post.address(taken)
            parts = await self._parts(post, taken, address)
        except ConfigError as error:  # kept until the operator has put that right
            log.error("inbox_unreadable", channel=post.name, queue=taken.queue, error=str(error))
            raise Later(LONGEST_SEND_PAUSE) from error
        await self._deliver(post, taken, address, parts)
        await self._inbox.settle(taken.queue, self._holder, self._clock.now())

    # -- the run -------------------------------------------------------------------------------------------

    async def _parts(self, post: Post, taken: Taken, address: Address) -> tuple[str, ...]:
        """The messages of the answer; of a queue that was answered already, as they were kept."""
        if taken.reply is not None:
            return post.reply(taken.reply, taken)
        kept = await self._together(post, taken, address)
        if not kept:
            return ()
        self._require(await self._inbox.begin(taken.queue, self._holder, kept[-1][0].seq))
        parts = await self._answer(post, taken, kept)
        sealed = post.seal.seal({"parts": parts}, taken.queue)
        self._require(await self._inbox.answer(taken.queue, self._holder, sealed, kept[-1][0].seq))
        return parts

    async def _together(self, post: Post, taken: Taken, address: Address) -> Sequence[tuple[Kept, Inbound]]:
        """The letters that are answered together: those of before a crash, else of one kind in a row."""
        several = post.setup.debounce > 0 or taken.upto > 0
        kept = await self._inbox.waiting(taken.queue, MOST_TOGETHER if several else 1)
        begun = [one for one in kept if one.seq <= taken.upto] or kept
        messages = [(one, post.message(one, taken, address)) for one in begun]
        return list(takewhile(lambda one: one[1].kind == messages[0][1].kind, messages))

    async def _answer(
        self, post: Post, taken: Taken, kept: Sequence[tuple[Kept, Inbound]]
    ) -> tuple[str, ...]:
        messages = [message for _, message in kept]
        match messages[0].kind:
            case "unreadable":
                return post.channel.split(post.channel.unreadable_reply)
            case "fallback":
                await self._recall(post, taken, messages[0].address, 0)
                return ()
        key = kept[0][0].id
        if (question := self._waiting.pop(key, None)) is not None:
            return post.channel.split(await self._asked(post, taken, question))
        noticing = asyncio.create_task(_noticed(post, messages[-1]))
        try:
            prepared = [await post.channel.prepare(message) for message in messages]
            trace = next((message.traceparent for message in messages if message.traceparent), "")
            question = post.question(taken, messages[0].address, key, prepared, trace)
            return post.channel.split(await self._asked(post, taken, question))
        finally:
            await asyncio.wait([noticing], timeout=NOTICE_SECONDS)
            noticing.cancel()

    async def _asked(self, post: Post, taken: Taken, question: Question) -> str:
        self.asking.add(taken.queue)
        try:
            return await self._ask(question)
        except GuardrailBlocked as refusal:
            return str(refusal)
        except ShuttingDown:
            raise
        except ApprovalRequired as paused:  # the answer comes when somebody has decided
            self._remember(question)
            raise Later(APPROVAL_PAUSE, failed=False) from paused
        except _NOT_BEGUN as error:
            if taken.attempts < MOST_RUNS:
                log.warning("run_not_begun", channel=post.name, agent=question.agent, error=str(error))
                raise Later(pause(taken.attempts, LONGEST_RUN_PAUSE)) from error
            return self._sorry(post, question.agent, error)
        except AstromeshError as error:
            return self._sorry(post, question.agent, error)
        finally:
            self.asking.discard(taken.queue)

    def _remember(self, question: Question) -> None:
        self._waiting[question.key] = replace(question, images=())
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def forget(self, tenant: str, principal: str) -> None:
        """Holds nothing of a person any more."""
        of = (tenant, principal)
        for key in [k for k, q in self._waiting.items() if (q.caller.tenant_id, q.caller.user_id) == of]:
            del self._waiting[key]

    def _sorry(self, post: Post, agent: str, error: AstromeshError) -> str:
        log.error("run_given_up", channel=post.name, agent=agent, code=error.code, run_id=error.run_id)
        return post.setup.failure_reply

    # -- the answer ----------------------------------------------------------------------------------------

    async def _deliver(self, post: Post, taken: Taken, address: Address, parts: Sequence[str]) -> None:
        """Sends what was not sent yet, in order."""
        first = taken.sent if taken.reply is not None else 0
        attempts = taken.attempts
        for place in range(first, len(parts)):
            try:
                own = await post.channel.send(address, parts[place])
            except OutsideWindow:
                await self._recall(post, taken, address, len(parts))
                return
            except ChannelRejected as error:
                log.error("reply_rejected", channel=post.name, queue=taken.queue, error=str(error))
                return
            except ChannelError as error:
                if attempts >= MOST_SENDS:
                    log.error("reply_given_up", channel=post.name, queue=taken.queue, error=str(error))
                    return
                log.warning("reply_delayed", channel=post.name, queue=taken.queue, error=str(error))
                raise Later(max(error.retry_after, pause(attempts, LONGEST_SEND_PAUSE))) from error
            attempts = 0
            await self._noted(post, taken, address, own, place + 1)

    async def _noted(self, post: Post, taken: Taken, address: Address, id: str, sent: int) -> None:
        digest = post.seal.digest("sent", id) if id else ""
        report = Report(digest, 0, self._clock.now())
        self._require(await self._inbox.sent(taken.queue, self._holder, sent, report))
        if digest and await self._inbox.fate(digest) == (_FAILED, OUTSIDE):
            await self._inbox.put([fallback(post, address, id, self._clock.now())])  # its status was faster

    async def _recall(self, post: Post, taken: Taken, address: Address, sent: int) -> None:
        try:
            own = await post.channel.recall(address)
            log.warning("reply_outside_window", channel=post.name, queue=taken.queue, template="sent")
            digest = post.seal.digest("sent", own) if own else ""
            report = Report(digest, 0, self._clock.now())
            self._require(await self._inbox.sent(taken.queue, self._holder, sent, report))
        except ChannelRejected as error:
            log.error("reply_outside_window", channel=post.name, queue=taken.queue, error=str(error))
        except ChannelError as error:
            if taken.attempts < MOST_SENDS:
                raise Later(max(error.retry_after, pause(taken.attempts, LONGEST_SEND_PAUSE))) from error

    @staticmethod
    def _require(held: bool) -> None:
        if not held:
            raise LeaseEnded


async def _noticed(post: Post, message: Inbound) -> None:
    try:
        await post.channel.noticed(message)
    except ChannelError as error:
        log.info("not_marked_as_read", channel=post.name, error=str(error))


def fallback(post: Post, address: Address, id: str, now: float) -> Letter:
    """A letter to ourselves: the message with this id never arrived, and only a template will."""
    return post.letter(Inbound(f"fallback:{id}", address, kind="fallback"), now)


def pause(attempts: int, longest: float) -> float:
    """Seconds before the next try: doubled each time."""
    return float(min(FIRST_PAUSE * 2 ** min(attempts, 20), longest))
