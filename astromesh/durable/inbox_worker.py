"""Stores what webhooks bring, and answers the inbox: one queue for each person.

A process leases a queue, so that of several processes one answers it. A process that died stops renewing
its leases. Another one, or the same one after a restart, continues at the step that the inbox has stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any, ClassVar, Self
from uuid import uuid4

import structlog
from pydantic import BaseModel, ConfigDict

from astromesh.channels.base import (
    DELIVERY_STATES,
    AskAgent,
    DeliveryReport,
    DeliveryStatus,
    Inbox,
    LeasedQueue,
    WebhookRequest,
)
from astromesh.channels.reply import (
    OUTSIDE_WINDOW,
    QueueLeaseLost,
    Responder,
    RetryLater,
    backoff,
    fallback_message,
)
from astromesh.channels.setup import ChannelSetup, ConfiguredChannel
from astromesh.durable.leases import PeriodicJob, cancel_and_wait
from astromesh.errors import AstromeshError, ChannelNotFound, ShuttingDown
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock

#: queues in work at once; of these, how many are begun without a pause, and the seconds until as many more
MAX_ACTIVE, BURST, BURST_SECONDS = 64, 8, 0.1
#: seconds between two polls at the inbox where nobody says that something came
POLL_SECONDS = 2.0
#: seconds that the end waits for what is in work, and of that for runs: these are asked about again
GRACE_SECONDS, RUN_GRACE_SECONDS = 5.0, 0.25
#: seconds that answered messages are known: Meta repeats a webhook for seven days
RETENTION_SECONDS, SWEEP_SECONDS = 8 * 86_400.0, 3600.0
#: characters of a trace context that are kept
_MAX_TRACEPARENT = 512

log = structlog.get_logger("astromesh.channels")


class InboxWorkerOptions(BaseModel):
    """What the runtime passes. None of these names is a YAML key.

    Args:
        channels: opened ones by name, each with its setup's keys.
        ask: runs an agent.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    inbox: Any
    channels: Mapping[str, tuple[Any, Mapping[str, Any]]]
    ask: Any


class ChannelInboxWorker:
    """An `InboxWorker` over one inbox."""

    Options: ClassVar[type[BaseModel]] = InboxWorkerOptions

    def __init__(
        self, inbox: Inbox, posts: Mapping[str, ConfiguredChannel], ask: AskAgent, clock: Clock
    ) -> None:
        self._inbox, self._channels, self._clock = inbox, posts, clock
        self._holder = uuid4().hex
        self._responder = Responder(inbox, ask, clock, self._holder)
        self._lease = min(post.setup.lease for post in posts.values())
        self._work: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, LeasedQueue] = {}
        self._wake = asyncio.Event()
        self._next_burst_at = 0.0
        self._polling: asyncio.Task[None] | None = None
        self._jobs = [
            PeriodicJob(self._renew_leases, self._lease / 3, _log_unavailable, sleep=clock.sleep),
            PeriodicJob(self._sweep, SWEEP_SECONDS, _log_unavailable, sleep=clock.sleep, at_once=True),
        ]

    @classmethod
    async def open(cls, options: InboxWorkerOptions, deps: Deps) -> Self:
        posts = {
            name: ConfiguredChannel(name, channel, ChannelSetup(**setup))
            for name, (channel, setup) in options.channels.items()
        }
        desk = cls(options.inbox, posts, options.ask, deps.clock)
        desk.start()
        return desk

    def start(self) -> None:
        """Starts to work off the inbox, what an earlier process left first."""
        self._polling = asyncio.create_task(self._poll())
        for job in self._jobs:
            job.start()

    async def close(self) -> None:
        await cancel_and_wait(self._polling)
        for grace, queues in (
            (RUN_GRACE_SECONDS, self._responder.queues_in_runs),
            (GRACE_SECONDS, self._work.keys()),
        ):
            if self._work:
                await asyncio.wait(self._work.values(), timeout=grace)
            for queue in tuple(self._work.keys() & queues):
                self._work[queue].cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)
        for job in self._jobs:
            await job.close()
        for post in self._channels.values():
            await post.channel.close()

    # -- webhooks ------------------------------------------------------------------------------------------

    def challenge(self, channel: str, request: WebhookRequest) -> str:
        return self._channel(channel).channel.challenge(request)

    async def receive(self, channel: str, request: WebhookRequest) -> None:
        post = self._channel(channel)
        post.channel.verify(request)
        received = post.channel.parse(request.body)
        now = self._clock.now()
        trace = request.headers.get("traceparent", "")[:_MAX_TRACEPARENT]
        ours = [one for one in received.messages if post.is_ours(one.address)]
        letters = [post.to_inbox(replace(one, traceparent=trace) if trace else one, now) for one in ours]
        if len(letters) < len(received.messages):
            log.warning("not_our_address", channel=channel, messages=len(received.messages) - len(letters))
        if letters and await self._inbox.put(letters):
            self._wake.set()
        if received.statuses:
            await self._report(post, received.statuses, now)

    async def erase(self, tenant: str, principal: str) -> int:
        self._responder.forget_principal(tenant, principal)
        return await self._inbox.erase(tenant, principal)

    async def _report(
        self, post: ConfiguredChannel, statuses: tuple[DeliveryStatus, ...], now: float
    ) -> None:
        reports = [
            DeliveryReport(
                post.cipher.digest("sent", one.id),
                DELIVERY_STATES.index(one.state),
                now,
                OUTSIDE_WINDOW if one.outside_window else one.code,
            )
            for one in statuses
        ]
        news = await self._inbox.report(reports)
        failed = [one for one, new in zip(statuses, news, strict=True) if new and one.state == "failed"]
        for one in failed:
            log.error("reply_failed", channel=post.name, code=one.code)
        lost = [fallback_message(post, one.address, one.id, now) for one in failed if one.outside_window]
        if lost and await self._inbox.put(lost):
            self._wake.set()

    def _channel(self, name: str) -> ConfiguredChannel:
        post = self._channels.get(name)
        if post is None:
            raise ChannelNotFound(f"There is no channel {name!r}: it is not set up in channels.yaml.")
        return post

    # -- the inbox -----------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            self._wake.clear()
            try:
                seconds = await self._poll_once()
            except AstromeshError as error:
                log.warning("inbox_unavailable", error=str(error))
                seconds = POLL_SECONDS
            await self._sleep_until_woken(seconds)

    async def _poll_once(self) -> float:
        """Takes what is due; returns the seconds until the next look."""
        names, now = tuple(self._channels), self._clock.now()
        free, seconds = self._free()
        if not free:
            return seconds
        for taken in await self._inbox.take(self._holder, names, now, now + self._lease, free):
            if taken.queue in self._work:
                self._again[taken.queue] = taken
            else:
                self._start(taken, self._serve(taken))
        due = await self._inbox.next_due(names)
        return POLL_SECONDS if due is None else min(max(due - self._clock.now(), 0.01), POLL_SECONDS)

    def _free(self) -> tuple[int, float]:
        """Returns how many queues may begin now and, if none, the seconds until the next poll."""
        working, now = len(self._work), monotonic()
        free = queues_to_begin(working, burst_over=now >= self._next_burst_at)
        if not free:
            return 0, POLL_SECONDS if working >= MAX_ACTIVE else self._next_burst_at - now
        self._next_burst_at = now + BURST_SECONDS
        return free, 0.0

    def _start(self, taken: LeasedQueue, work: Coroutine[Any, Any, None]) -> None:
        task = self._work[taken.queue] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._ended(taken.queue))

    def _ended(self, queue: str) -> None:
        """What was taken while we still worked on it is released at once, to be looked at anew."""
        self._work.pop(queue, None)
        if (taken := self._again.pop(queue, None)) is not None:
            self._start(taken, self._release(taken, 0.0, taken.attempts))
        self._wake.set()

    async def _serve(self, taken: LeasedQueue) -> None:
        post = self._channels[taken.channel]
        try:
            await self._responder.serve(post, taken)
        except QueueLeaseLost:
            log.warning("lease_ended", channel=post.name, queue=taken.queue)
        except RetryLater as later:
            await self._release(taken, later.seconds, taken.attempts + later.counts_as_attempt)
        except (asyncio.CancelledError, ShuttingDown) as error:
            await asyncio.shield(self._release(taken, POLL_SECONDS, taken.attempts))
            if isinstance(error, asyncio.CancelledError):
                raise
        except AstromeshError as error:
            log.warning("inbox_unavailable", channel=post.name, error=str(error))
            await self._release(taken, POLL_SECONDS, taken.attempts)
        except (
            Exception
        ):  # border of a background run: what a channel raises ends this attempt, not the worker
            log.exception("channel_crashed", channel=post.name, queue=taken.queue)
            await self._release(taken, backoff(taken.attempts, 300.0), taken.attempts + 1)

    async def _release(self, taken: LeasedQueue, seconds: float, attempts: int) -> None:
        try:
            due = self._clock.now() + seconds
            await self._inbox.release(taken.queue, self._holder, due, attempts)
        except AstromeshError as error:  # then its lease ends by itself
            log.warning("inbox_unavailable", error=str(error))

    async def _renew_leases(self) -> None:
        """Renews the leases of the queues in work; one that is lost is no longer worked on."""
        working = dict(self._work)
        if not working:
            return
        held = await self._inbox.renew(self._holder, self._clock.now() + self._lease)
        for queue in working.keys() - held:
            working[queue].cancel()  # done by now, or somebody else's

    async def _sweep(self) -> None:
        await self._inbox.expire(self._clock.now() - RETENTION_SECONDS)

    async def _sleep_until_woken(self, seconds: float) -> None:
        waits: tuple[Coroutine[Any, Any, Any], ...] = (self._wake.wait(), self._clock.sleep(seconds))
        tasks = [asyncio.ensure_future(one) for one in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _log_unavailable(error: Exception) -> None:
    log.warning("inbox_unavailable", error=str(error))


def queues_to_begin(working: int, *, burst_over: bool) -> int:
    """Returns how many queues may begin beside the active ones.

    Webhooks are answered at once (docs/whatsapp.md has the figures). So work that keeps the processor busy
    begins in small bursts, and only work that waits for models accumulates.

    Args:
        burst_over: whether no queue began within `BURST_SECONDS`.
    """
    if working < BURST:
        return BURST - working
    return min(BURST, MAX_ACTIVE - working) if burst_over else 0
