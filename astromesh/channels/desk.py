"""The desk: what webhooks bring is kept, and what is kept is worked off, one queue for each person.

A queue is leased, so that of several processes one answers it. A process that died stops renewing its leases;
another one, or the same one started again, takes over where the inbox says that it had come to.
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

from astromesh.abc.channel import STATES, Ask, Inbox, Report, Status, Taken, Webhook
from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.channels.clerk import OUTSIDE, Clerk, Later, LeaseEnded, fallback, pause
from astromesh.channels.post import Post, Setup
from astromesh.errors import AstromeshError, ChannelNotFound, ShuttingDown

#: queues in work at once; of these, how many are begun without a pause, and the seconds until as many more
MOST_AT_ONCE, AT_A_TIME, BREATH = 64, 8, 0.1
#: seconds between two looks at the inbox where nobody says that something came
POLL = 2.0
#: seconds that the end waits for what is in work, and of that for runs: these are asked about again
GRACE, GRACE_OF_RUNS = 5.0, 0.25
#: seconds that answered letters are known: Meta repeats a webhook for seven days
KEPT, SWEEP = 8 * 86_400.0, 3600.0
#: characters of a trace context that are kept
_MOST_TRACEPARENT = 512

log = structlog.get_logger("astromesh.channels")


class DeskOptions(BaseModel):
    """What the runtime hands over; nothing of it stands in YAML by these names.

    Args:
        channels: opened ones by name, each with its setup's keys.
        ask: runs an agent.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    inbox: Any
    channels: Mapping[str, tuple[Any, Mapping[str, Any]]]
    ask: Any


class ChannelDesk:
    """A Desk over one inbox."""

    Options: ClassVar[type[BaseModel]] = DeskOptions

    def __init__(self, inbox: Inbox, posts: Mapping[str, Post], ask: Ask, clock: Clock) -> None:
        self._inbox, self._posts, self._clock = inbox, posts, clock
        self._holder = uuid4().hex
        self._clerk = Clerk(inbox, ask, clock, self._holder)
        self._lease = min(post.setup.lease for post in posts.values())
        self._work: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, Taken] = {}
        self._woken = asyncio.Event()
        self._breath = 0.0
        self._running: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, options: DeskOptions, deps: Deps) -> Self:
        posts = {
            name: Post(name, channel, Setup(**setup)) for name, (channel, setup) in options.channels.items()
        }
        desk = cls(options.inbox, posts, options.ask, deps.clock)
        desk.start()
        return desk

    def start(self) -> None:
        """Begins to work off the inbox, what an earlier process left first."""
        for work in (self._take_up(), self._prolong(), self._sweep()):
            self._running.append(asyncio.create_task(work))

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        for grace, queues in ((GRACE_OF_RUNS, self._clerk.asking), (GRACE, self._work.keys())):
            if self._work:
                await asyncio.wait(self._work.values(), timeout=grace)
            for queue in tuple(self._work.keys() & queues):
                self._work[queue].cancel()
        await asyncio.gather(*self._running, *self._work.values(), return_exceptions=True)
        for post in self._posts.values():
            await post.channel.close()

    # -- webhooks ------------------------------------------------------------------------------------------

    def challenge(self, channel: str, request: Webhook) -> str:
        return self._post(channel).channel.challenge(request)

    async def receive(self, channel: str, request: Webhook) -> None:
        post = self._post(channel)
        post.channel.verify(request)
        received = post.channel.parse(request.body)
        now = self._clock.now()
        trace = request.headers.get("traceparent", "")[:_MOST_TRACEPARENT]
        ours = [one for one in received.messages if post.is_ours(one.address)]
        letters = [post.letter(replace(one, traceparent=trace) if trace else one, now) for one in ours]
        if len(letters) < len(received.messages):
            log.warning("not_our_address", channel=channel, messages=len(received.messages) - len(letters))
        if letters and await self._inbox.put(letters):
            self._woken.set()
        if received.statuses:
            await self._report(post, received.statuses, now)

    async def erase(self, tenant: str, principal: str) -> int:
        self._clerk.forget(tenant, principal)
        return await self._inbox.erase(tenant, principal)

    async def _report(self, post: Post, statuses: tuple[Status, ...], now: float) -> None:
        reports = [
            Report(
                post.seal.digest("sent", one.id),
                STATES.index(one.state),
                now,
                OUTSIDE if one.outside_window else one.code,
            )
            for one in statuses
        ]
        news = await self._inbox.report(reports)
        failed = [one for one, new in zip(statuses, news, strict=True) if new and one.state == "failed"]
        for one in failed:
            log.error("reply_failed", channel=post.name, code=one.code)
        lost = [fallback(post, one.address, one.id, now) for one in failed if one.outside_window]
        if lost and await self._inbox.put(lost):
            self._woken.set()

    def _post(self, name: str) -> Post:
        post = self._posts.get(name)
        if post is None:
            raise ChannelNotFound(f"There is no channel {name!r}: it is not set up in channels.yaml.")
        return post

    # -- the inbox -----------------------------------------------------------------------------------------

    async def _take_up(self) -> None:
        while True:
            self._woken.clear()
            try:
                seconds = await self._round()
            except AstromeshError as error:
                log.warning("inbox_unavailable", error=str(error))
                seconds = POLL
            await self._woken_within(seconds)

    async def _round(self) -> float:
        """Takes what is due; answers the seconds until the next look."""
        names, now = tuple(self._posts), self._clock.now()
        free, seconds = self._free()
        if not free:
            return seconds
        for taken in await self._inbox.take(self._holder, names, now, now + self._lease, free):
            if taken.queue in self._work:
                self._again[taken.queue] = taken
            else:
                self._start(taken, self._serve(taken))
        due = await self._inbox.next_due(names)
        return POLL if due is None else min(max(due - self._clock.now(), 0.01), POLL)

    def _free(self) -> tuple[int, float]:
        """How many queues may be begun now; where none, the seconds until the next look."""
        working, now = len(self._work), monotonic()
        free = room(working, breathed=now >= self._breath)
        if not free:
            return 0, POLL if working >= MOST_AT_ONCE else self._breath - now
        self._breath = now + BREATH
        return free, 0.0

    def _start(self, taken: Taken, work: Coroutine[Any, Any, None]) -> None:
        task = self._work[taken.queue] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._ended(taken.queue))

    def _ended(self, queue: str) -> None:
        """What was taken while we still worked on it is given back at once, to be looked at anew."""
        self._work.pop(queue, None)
        if (taken := self._again.pop(queue, None)) is not None:
            self._start(taken, self._give_back(taken, 0.0, taken.attempts))
        self._woken.set()

    async def _serve(self, taken: Taken) -> None:
        post = self._posts[taken.channel]
        try:
            await self._clerk.serve(post, taken)
        except LeaseEnded:
            log.warning("lease_ended", channel=post.name, queue=taken.queue)
        except Later as later:
            await self._give_back(taken, later.seconds, taken.attempts + later.failed)
        except (asyncio.CancelledError, ShuttingDown) as error:
            await asyncio.shield(self._give_back(taken, POLL, taken.attempts))
            if isinstance(error, asyncio.CancelledError):
                raise
        except AstromeshError as error:
            log.warning("inbox_unavailable", channel=post.name, error=str(error))
            await self._give_back(taken, POLL, taken.attempts)
        except Exception:  # border of a background run: what a channel raises ends this try, not the desk
            log.exception("channel_crashed", channel=post.name, queue=taken.queue)
            await self._give_back(taken, pause(taken.attempts, 300.0), taken.attempts + 1)

    async def _give_back(self, taken: Taken, seconds: float, attempts: int) -> None:
        try:
            due = self._clock.now() + seconds
            await self._inbox.release(taken.queue, self._holder, due, attempts)
        except AstromeshError as error:  # then its lease ends by itself
            log.warning("inbox_unavailable", error=str(error))

    async def _prolong(self) -> None:
        while True:
            await self._clock.sleep(self._lease / 3)
            working = dict(self._work)
            if not working:
                continue
            try:
                held = await self._inbox.renew(self._holder, self._clock.now() + self._lease)
            except AstromeshError as error:
                log.warning("inbox_unavailable", error=str(error))
                continue
            for queue in working.keys() - held:
                working[queue].cancel()  # done by now, or somebody else's

    async def _sweep(self) -> None:
        while True:
            try:
                await self._inbox.expire(self._clock.now() - KEPT)
            except AstromeshError as error:
                log.warning("inbox_unavailable", error=str(error))
            await self._clock.sleep(SWEEP)

    async def _woken_within(self, seconds: float) -> None:
        waits: tuple[Coroutine[Any, Any, Any], ...] = (self._woken.wait(), self._clock.sleep(seconds))
        tasks = [asyncio.ensure_future(one) for one in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def room(working: int, *, breathed: bool) -> int:
    """How many queues may be begun beside those in work.

    Webhooks are to be answered at once (docs/whatsapp.md has the figures): work that keeps the processor busy
    is done a few at a time, and only what waits for models becomes more.

    Args:
        breathed: whether nothing was begun for `BREATH` seconds.
    """
    if working < AT_A_TIME:
        return AT_A_TIME - working
    return min(AT_A_TIME, MOST_AT_ONCE - working) if breathed else 0
