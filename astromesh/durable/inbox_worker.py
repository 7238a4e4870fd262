"""Stores what webhooks bring, and answers the inbox: one queue for each person.

A worker leases a queue, so that of several processes one answers it. Another process, or the same one after a
restart, continues the queue of a dead process at the step that the inbox has stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from astromesh.channels.base import (
    DELIVERY_STATES,
    AskAgent,
    ChannelBacklog,
    ChannelDecision,
    DecideRun,
    DecidingChannel,
    DeliveryReport,
    DeliveryStatus,
    Inbox,
    LeasedQueue,
    WebhookRequest,
)
from astromesh.channels.responder import (
    OUTSIDE_WINDOW,
    ChannelSetup,
    ConfiguredChannel,
    QueueLeaseLost,
    Responder,
    RetryLater,
    backoff,
    fallback_message,
)
from astromesh.durable.leases import PeriodicJob, Worker, WorkerHeartbeat
from astromesh.errors import (
    AstromeshError,
    ChannelError,
    ChannelNotFound,
    RequestError,
    ShuttingDown,
    StoreError,
    is_failure,
)
from astromesh.logs import OutageLog, get_logger
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock, interval_sleep
from astromesh.types import JsonObject

#: queues in work at once; of these, how many are begun without a pause, and the seconds until as many more
MAX_ACTIVE, BURST, BURST_SECONDS = 64, 8, 0.1
#: seconds between two polls at the inbox if no message arrives
POLL_SECONDS = 2.0
#: seconds that the end waits for active queues, and of that for runs: the next process asks for these again
GRACE_SECONDS, RUN_GRACE_SECONDS = 5.0, 0.25
#: seconds that answered messages are known: Meta repeats a webhook for seven days
RETENTION_SECONDS, EXPIRY_SECONDS = 8 * 86_400.0, 3600.0
#: seconds for which a webhook waits until a decision is shown: Slack waits for three
SHOW_DECISION_SECONDS = 2.0
#: maximum characters of a stored trace context
_MAX_TRACEPARENT = 512
#: folder below the data folder that holds the files of live workers
_FOLDER = "inbox"

log = get_logger("astromesh.channels")


class InboxWorkerOptions(BaseModel):
    """What the runtime passes. None of these names is a YAML key.

    Args:
        channels: opened ones by name, each with its setup's keys.
        ask: runs an agent.
        decide: decides for a waiting run; None: nobody can.
        answers: whether this process answers messages, or only stores what webhooks bring.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    inbox: Any
    channels: Mapping[str, tuple[Any, Mapping[str, Any]]]
    ask: Any
    decide: Any = None
    answers: bool = True


class ChannelInboxWorker:
    """An `InboxWorker` over one inbox, whose queues it leases as a `Worker`."""

    Options: ClassVar[type[BaseModel]] = InboxWorkerOptions

    def __init__(
        self,
        inbox: Inbox,
        channels: Mapping[str, ConfiguredChannel],
        ask: AskAgent,
        clock: Clock,
        heartbeat: WorkerHeartbeat,
        decide: DecideRun | None = None,
    ) -> None:
        self._decide_run = decide
        self._inbox, self._channels, self._clock = inbox, channels, clock
        self._lease = min(channel.setup.lease for channel in channels.values())
        outages = OutageLog(log, "inbox_unavailable", "inbox_available")
        sleep = interval_sleep(clock)
        self._worker = Worker(self, heartbeat, outages, lease_seconds=self._lease, sleep=sleep)
        self._responder = Responder(inbox, ask, clock, self._worker.name)
        self._again: dict[str, LeasedQueue] = {}
        #: active queues for whose run a person has decided
        self._decided: set[str] = set()
        self._next_burst_at = 0.0
        self._expiry = PeriodicJob(
            lambda: inbox.expire(clock.now() - RETENTION_SECONDS),
            EXPIRY_SECONDS,
            lambda error: outages.failed(str(error)),
            sleep=sleep,
            at_once=True,
        )

    @classmethod
    async def open(cls, options: InboxWorkerOptions, deps: Deps) -> Self:
        channels = {
            name: ConfiguredChannel(name, channel, ChannelSetup(**setup))
            for name, (channel, setup) in options.channels.items()
        }
        heartbeat = WorkerHeartbeat(deps.data_dir / _FOLDER)
        opened = cls(options.inbox, channels, options.ask, deps.clock, heartbeat, options.decide)
        if options.answers:
            opened.start()
        return opened

    def start(self) -> None:
        """Starts to answer the inbox, the messages of earlier processes first."""
        self._worker.start()
        self._expiry.start()

    async def close(self) -> None:
        await self._worker.drain()
        active = self._worker.active
        for grace, queues in (
            (RUN_GRACE_SECONDS, self._responder.queues_in_runs),
            (GRACE_SECONDS, active.keys()),
        ):
            if active:
                await asyncio.wait(active.values(), timeout=grace)
            for queue in tuple(active.keys() & queues):
                active[queue].cancel()
        await asyncio.gather(*active.values(), return_exceptions=True)
        await self._expiry.close()
        with suppress(StoreError):  # then the leases expire
            await self._worker.close()
        for channel in self._channels.values():
            await channel.channel.close()

    # -- webhooks ------------------------------------------------------------------------------------------

    def challenge(self, channel: str, request: WebhookRequest) -> str:
        return self._channel(channel).channel.challenge(request)

    async def receive(self, channel: str, request: WebhookRequest) -> JsonObject:
        configured = self._channel(channel)
        configured.channel.verify(request)
        received = configured.channel.parse(request.body)
        now = self._clock.now()
        trace = request.headers.get("traceparent", "")[:_MAX_TRACEPARENT]
        ours = [one for one in received.messages if configured.is_ours(one.address)]
        if len(ours) < len(received.messages):
            log.warning("not_our_address", channel=channel, messages=len(received.messages) - len(ours))
        if trace:
            ours = [replace(message, traceparent=trace) for message in ours]
        if ours and await self._inbox.put([configured.to_inbox(message, now) for message in ours]):
            self._worker.wake()
        if received.statuses:
            await self._report(configured, received.statuses, now)
        for decision in received.decisions:
            await self._decide(configured, decision)
        return received.answer or {}

    async def _decide(self, configured: ConfiguredChannel, decision: ChannelDecision) -> None:
        """Decides for a run of the conversation, if the person may, and shows what came of it."""
        channel = configured.channel
        if self._decide_run is None or not isinstance(channel, DecidingChannel):
            return
        if not channel.may_decide(decision):
            log.warning("decision_refused", channel=configured.name, run_id=decision.run_id)
            return
        owner, by = configured.caller(decision.address.user), configured.caller(decision.by)
        outcome = "Approved." if decision.approved else "Denied."
        try:
            await self._decide_run(owner, by, decision)
            await self._retry_now(configured.queue(decision.address))
        except RequestError as error:  # decided before, or no run of this conversation
            log.info("decision_without_effect", channel=configured.name, error=str(error))
            outcome = "There is nothing to decide any more."
        try:
            async with asyncio.timeout(SHOW_DECISION_SECONDS):
                await channel.show_decision(decision, outcome)
        except (ChannelError, TimeoutError) as error:
            log.info("decision_not_shown", channel=configured.name, error=str(error))

    async def _retry_now(self, queue: str) -> None:
        """Makes a queue due whose run goes on, also one that this process is about to release."""
        if queue in self._worker.active:
            self._decided.add(queue)
        await self._inbox.retry_now(queue, self._clock.now())
        self._worker.wake()

    async def backlog(self) -> Mapping[str, ChannelBacklog]:
        return await self._inbox.backlog()

    async def erase(self, tenant: str, principal: str) -> int:
        self._responder.forget_principal(tenant, principal)
        return await self._inbox.erase(tenant, principal)

    async def _report(
        self, channel: ConfiguredChannel, statuses: tuple[DeliveryStatus, ...], now: float
    ) -> None:
        reports = [
            DeliveryReport(
                channel.cipher.digest("sent", one.id),
                DELIVERY_STATES.index(one.state),
                now,
                OUTSIDE_WINDOW if one.outside_window else one.code,
            )
            for one in statuses
        ]
        new = await self._inbox.report(reports)
        failed = [one for one, is_new in zip(statuses, new, strict=True) if is_new and one.state == "failed"]
        for one in failed:
            log.error("reply_failed", channel=channel.name, code=one.code)
        fallbacks = [
            fallback_message(channel, one.address, one.id, now) for one in failed if one.outside_window
        ]
        if fallbacks and await self._inbox.put(fallbacks):
            self._worker.wake()

    def _channel(self, name: str) -> ConfiguredChannel:
        channel = self._channels.get(name)
        if channel is None:
            raise ChannelNotFound(f"There is no channel {name!r}: it is not set up in channels.yaml.")
        return channel

    # -- the queue that the worker leases from -------------------------------------------------------------

    async def renew_leases(self, worker: str) -> Collection[str]:
        active = set(self._worker.active)
        if not active:
            return ()
        return active - await self._inbox.renew(worker, self._clock.now() + self._lease)

    def has_work(self) -> bool:
        """Returns False: no caller can end an answer."""
        return False

    async def cancel_requested(self, worker: str) -> Collection[str]:
        """Returns nothing: no caller can end an answer."""
        return ()

    async def sweep(self, worker: str) -> float:
        """Leases the queues that are due."""
        names, now = tuple(self._channels), self._clock.now()
        free, seconds = self._free()
        if not free:
            return seconds
        for leased in await self._inbox.take(worker, names, now, now + self._lease, free):
            if leased.queue in self._worker.active:
                self._again[leased.queue] = leased
            else:
                self._start(leased, self._serve(leased))
        due = await self._inbox.next_due(names)
        return POLL_SECONDS if due is None else min(max(due - self._clock.now(), 0.01), POLL_SECONDS)

    async def take_over(self, worker: str, dead: str) -> None:
        await self._inbox.release_holder(dead)
        self._worker.wake()

    async def release_leases(self, worker: str) -> None:
        await self._inbox.release_holder(worker)

    def stop(self, queue: str) -> None:
        if (work := self._worker.active.get(queue)) is not None:
            work.cancel()

    def _free(self) -> tuple[int, float]:
        """Returns how many queues may begin now and, if none, the seconds until the next poll."""
        active, now = len(self._worker.active), monotonic()
        free = queues_to_begin(active, burst_over=now >= self._next_burst_at)
        if not free:
            return 0, POLL_SECONDS if active >= MAX_ACTIVE else self._next_burst_at - now
        self._next_burst_at = now + BURST_SECONDS
        return free, 0.0

    def _start(self, leased: LeasedQueue, work: Coroutine[Any, Any, None]) -> None:
        self._worker.execute(leased.queue, work).add_done_callback(lambda _: self._ended(leased.queue))

    def _ended(self, queue: str) -> None:
        """Releases a queue that was leased again while it was active, so that it is read anew."""
        self._decided.discard(queue)
        if (leased := self._again.pop(queue, None)) is not None:
            self._start(leased, self._release(leased, 0.0, leased.attempts))
        self._worker.wake()

    # -- one queue -----------------------------------------------------------------------------------------

    async def _serve(self, leased: LeasedQueue) -> None:
        channel = self._channels[leased.channel]
        try:
            await self._responder.serve(channel, leased)
        except QueueLeaseLost:
            log.warning("lease_ended", channel=channel.name, queue=leased.queue)
        except RetryLater as later:
            goes_on = leased.queue in self._decided and not later.counts_as_attempt
            seconds = 0.0 if goes_on else later.seconds
            await self._release(leased, seconds, leased.attempts + later.counts_as_attempt)
        except (asyncio.CancelledError, ShuttingDown) as error:
            await asyncio.shield(self._release(leased, POLL_SECONDS, leased.attempts))
            if isinstance(error, asyncio.CancelledError):
                raise
        except AstromeshError as error:
            log.warning("inbox_unavailable", channel=channel.name, error=str(error))
            await self._release(leased, POLL_SECONDS, leased.attempts)
        except BaseException as error:  # a channel's fault ends this attempt, not the worker
            if not is_failure(error):
                raise
            log.exception("channel_crashed", channel=channel.name, queue=leased.queue)
            await self._release(leased, backoff(leased.attempts, 300.0), leased.attempts + 1)

    async def _release(self, leased: LeasedQueue, seconds: float, attempts: int) -> None:
        try:
            due = self._clock.now() + seconds
            await self._inbox.release(leased.queue, self._worker.name, due, attempts)
        except AstromeshError as error:  # then its lease expires
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
