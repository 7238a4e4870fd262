"""One run at a time per session (reliability.md R2): the lock in this process.

The lease across processes, merged messages.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakValueDictionary

import structlog

from astromesh.durable.base import ConcurrencyPolicy, SessionLease, SessionLeases
from astromesh.durable.leases import LEASE_SECONDS, REQUEST_SECONDS, PeriodicJob
from astromesh.errors import AstromeshError, Interrupted, LeaseLost, SessionBusy, SessionNotFound
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import SessionKey

# Messages that arrive close together become one run (`sessions.concurrency: merge`).

M = TypeVar("M")


T = TypeVar("T")


MergeKey = tuple[SessionKey, str]


class MergeWindows:
    """The windows that are open now, by session and owner; one that has closed leaves no trace."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.open: dict[MergeKey, _MergeWindow[Any, Any]] = {}

    async def join(
        self, group: MergeKey, message: M, seconds: float, work: Callable[[Sequence[M]], Awaitable[T]]
    ) -> T:
        """Runs `work` once with all messages of a window; everybody gets its result.

        The work is that of the first caller. It continues until the last caller has gone.

        Args:
            seconds: length of the window, from its first message.
        """
        window = self.open.get(group)
        if window is None:
            window = self.open[group] = _MergeWindow(self, group, seconds, work)
        result: T = await window.result(message)
        return result


class _MergeWindow(Generic[M, T]):
    def __init__(
        self,
        merging: MergeWindows,
        group: MergeKey,
        seconds: float,
        work: Callable[[Sequence[M]], Awaitable[T]],
    ) -> None:
        self._merging, self._group, self._seconds, self._work = merging, group, seconds, work
        self._messages: list[M] = []
        self._callers = 0
        self._task = asyncio.create_task(self._run())

    async def result(self, message: M) -> T:
        self._messages.append(message)
        self._callers += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._callers -= 1
            if not self._callers and not self._task.done():
                await self._abandon()

    async def _run(self) -> T:
        try:
            await self._merging.clock.sleep(self._seconds)
        finally:
            self._close()
        return await self._work(self._messages)

    async def _abandon(self) -> None:
        self._close()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _close(self) -> None:
        if self._merging.open.get(self._group) is self:
            del self._merging.open[self._group]


#: messages of one session that may wait in this process
_MAX_WAITING = 1000


_REPLACED = "A newer message of the session took this one's place."


class SessionLock:
    """The right to run in a session, from `async with` to its end.

    Attributes:
        owner: principal who sits here; None for one who may use the sessions of others.
        token: fencing token of the lease; 0 where one process owns the store.
        waiting: who comes after, in order; None where nobody ever waited.
        newest: its place as the newest message over all processes, where the policy wants that.
        look: ends the run where a newer message has taken that place.
    """

    # Class attributes, so that a seat nobody else wants sets only what it needs.
    token: int = 0
    task: asyncio.Task[Any] | None = None
    granted: asyncio.Future[None] | None = None
    waiting: deque[SessionLock] | None = None
    newest: SessionLease | None = None
    check_newest: Callable[[], Awaitable[None]] | None = None
    interrupted: bool = False
    lost: bool = False

    def __init__(
        self,
        sessions: Sessions,
        key: SessionKey,
        policy: ConcurrencyPolicy,
        timeout: float,
        owner: str | None,
    ) -> None:
        self.sessions, self.key, self.policy, self.timeout, self.owner = sessions, key, policy, timeout, owner

    async def __aenter__(self) -> Self:
        held = self.sessions.active
        if (holder := held.get(self.key)) is None:
            held[self.key] = self
        else:
            await self._wait_behind(holder)
        self.task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self.task = self.task, None
        if self.waiting:
            self.hand_over()
        else:
            del self.sessions.active[self.key]
        if (self.interrupted or self.lost) and task is not None:
            _raise_interrupted(task, error, self.lost)

    def hand_over(self) -> None:
        """Gives the seat to the first who still waits."""
        waiting, self.waiting = self.waiting, None
        while waiting:
            following = waiting.popleft()
            if following.granted is not None and not following.granted.done():
                self.sessions.active[self.key] = following
                following.waiting = waiting
                following.granted.set_result(None)
                return
        del self.sessions.active[self.key]

    def interrupt(self) -> None:
        """Cancels the run that sits here, and sends away who waits behind it."""
        if self.task is None:
            self.interrupted = True  # given the seat in this very moment: it leaves as soon as it enters
        elif not (self.interrupted or self.lost):
            self.task.cancel()
            self.interrupted = True
        for older in self.waiting or ():
            if older.granted is not None and not older.granted.done():
                older.granted.set_exception(Interrupted(_REPLACED))

    def lose(self) -> None:
        """Ends the run that sits here: another process has taken the session's lease."""
        if self.task is not None and not (self.lost or self.interrupted):
            self.task.cancel()
            self.lost = True

    async def _wait_behind(self, holder: SessionLock) -> None:
        if None not in (holder.owner, self.owner) and holder.owner != self.owner:
            raise SessionNotFound(f"There is no session {self.key.session_id!r}.")
        if self.policy == "reject":
            raise busy_error()
        if self.policy == "interrupt":
            holder.interrupt()
        if holder.waiting is None:
            holder.waiting = deque()
        if len(holder.waiting) >= _MAX_WAITING:
            raise SessionBusy(f"{_MAX_WAITING} messages wait for this session; send this one again later.")
        holder.waiting.append(self)
        try:
            await self._wait()
            if self.interrupted:
                raise Interrupted(_REPLACED)
        except BaseException:
            self._leave()
            raise

    async def _wait(self) -> None:
        self.granted = asyncio.get_running_loop().create_future()
        timer = asyncio.create_task(self.sessions.clock.sleep(self.timeout))
        timer.add_done_callback(self._time_out)
        try:
            await self.granted
        finally:
            timer.cancel()

    def _time_out(self, timer: asyncio.Task[None]) -> None:
        if self.granted is not None and not self.granted.done() and not timer.cancelled():
            busy = f"The session was busy for {self.timeout:g} s with earlier messages; send this one again."
            self.granted.set_exception(SessionBusy(busy))

    def _leave(self) -> None:
        """Out of the queue; a seat that was given in the same moment goes to the next one."""
        holder = self.sessions.active.get(self.key)
        if holder is self:
            self.hand_over()
        elif holder is not None and holder.waiting and self in holder.waiting:
            holder.waiting.remove(self)


def busy_error() -> SessionBusy:
    return SessionBusy("The session is answering another message; send this one again when it is done.")


def replaced_error() -> Interrupted:
    return Interrupted(_REPLACED)


def _raise_interrupted(task: asyncio.Task[Any], error: BaseException | None, lost: bool) -> None:
    """Turns our own cancel into Interrupted or LeaseLost; where another cancel came as well, it stays one."""
    if task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
        if lost:
            raise LeaseLost(
                "Another process has taken the session over, and nothing was stored; send this message again."
            ) from error
        raise Interrupted(_REPLACED) from error


class Sessions:
    """The sessions in which something runs now; the others leave no trace.

    `held` maps a session to who sits in it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.active: dict[SessionKey, SessionLock] = {}
        self.merging = MergeWindows(self.clock)

    def enter(
        self,
        key: SessionKey,
        policy: ConcurrencyPolicy = "enqueue",
        timeout: float = 60.0,
        *,
        owner: str | None = None,
    ) -> SessionLock:
        """The session's only seat, as an async context manager. `merge` waits like `enqueue`; see `merging`.

        Args:
            timeout: seconds to wait for it.
            owner: principal who comes; None for one who may use the sessions of others.

        Raises (when entered):
            SessionBusy: by `reject` at once, otherwise after `timeout`.
            Interrupted: a newer message took the place.
            SessionNotFound: the session is in use by another principal.
        """
        return SessionLock(self, key, policy, timeout, owner)


# The leases of the sessions in which this process runs something (reliability.md R2).
#
# A run has its seat in the process first (`runtime.sessions`), then takes the session's lease from the store
# that keeps its turns; step 11 shows the lease's token, and a store whose session somebody else has taken
# meanwhile writes nothing. Where a store serves this process alone, there is no lease and no cost.
#
# By `interrupt` a message takes the place of the newest first, which is a lease as well: each message takes
# it
# from the one before, whatever that waits for. Who has lost it is answered no more.

#: seconds a lease lasts, and between two looks at those that are held, which also renew them


#: seconds between two attempts for a session that another process holds: the first, the longest
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.01, 0.25


#: behind an agent's name, which holds no blank; and who has the place of the newest message, in any process
_NEWEST_SUFFIX, _NEWEST_HOLDER = " newest ", "newest"


#: spreads the tries; the process's own `random` belongs to who embeds the runtime
_random = Random()  # noqa: S311 (no secret)


log = structlog.get_logger("astromesh.sessions")


class SessionLeaseHolder:
    """What this process holds.

    Attributes:
        holder: this process, by a name that no other has.
    """

    def __init__(self) -> None:
        self.holder = f"p_{secrets.token_hex(8)}"
        self._sessions: dict[SessionLeases, set[SessionLock]] = {}
        self._renewal = PeriodicJob(
            self._renew, REQUEST_SECONDS, self._renewal_failed, needed=lambda: any(self._sessions.values())
        )
        self._arrival_locks: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    def arrival_lock(self, key: SessionKey) -> asyncio.Lock:
        """Held while a message becomes the newest: in a process they come to their seats in that order."""
        return self._arrival_locks.setdefault(key, asyncio.Lock())

    def sessions_under(self, leases: SessionLeases) -> set[SessionLock]:
        """The seats whose sessions are under these leases, or will be when another process comes."""
        seats = self._sessions.get(leases)
        if seats is None:
            seats = self._sessions[leases] = set()
            leases.before_sharing(partial(self.share, leases))
        return seats

    async def share(self, leases: SessionLeases) -> None:
        """Puts everything that runs without a lease under one: another process has come."""
        for seat in tuple(self._sessions.get(leases, ())):
            if not seat.token:
                seat.token = await leases.take(seat.key, self.holder, LEASE_SECONDS) or 0
        self._renewal.start()

    async def take(self, leases: SessionLeases, seat: SessionLock) -> None:
        """Waits for the lease of a lock's session, at most `seat.timeout` seconds.

        Raises:
            SessionBusy: with `reject` at once, otherwise after the timeout.
        """
        policy, timeout = seat.policy, seat.timeout
        asked, pause = False, _FIRST_RETRY_SECONDS
        give_up = asyncio.get_running_loop().time() + timeout
        while not await self._try(leases, seat):
            if seat.newest is not None and await _is_lost(leases, seat.newest):
                raise replaced_error()
            if policy == "reject":
                raise busy_error()
            if asyncio.get_running_loop().time() >= give_up:
                raise SessionBusy(
                    f"The session was busy for {timeout:g} s with earlier messages; send this one again."
                )
            if policy == "interrupt" and not asked:
                asked = True
                await leases.interrupt(seat.key)
            await asyncio.sleep(pause * _random.uniform(0.5, 1.0))
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
        await require_newest(leases, seat)
        self._renewal.start()

    async def _try(self, leases: SessionLeases, seat: SessionLock) -> bool:
        """A run that is ended meanwhile knows whether it got the lease, and releases it."""
        taking = asyncio.ensure_future(leases.take(seat.key, self.holder, LEASE_SECONDS))
        try:
            got = await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.wait([taking])
            seat.token = (not taking.exception() and taking.result()) or 0
            raise
        seat.token = got or 0
        return got is not None

    async def release(self, leases: SessionLeases, held: SessionLease) -> None:
        try:
            await asyncio.shield(leases.release(held))
        except AstromeshError as error:  # it ends by itself
            log.warning("lease_not_released", session_id=held.key.session_id, error=str(error))

    async def _renew(self) -> None:
        """Renews every lease; a store that is unavailable leaves the leases of others alone."""
        for leases, seats in tuple(self._sessions.items()):  # others may come meanwhile
            if mine := [seat for seat in seats if seat.token]:
                try:
                    await self._renew_some(leases, mine, seats)
                except AstromeshError as error:
                    self._renewal_failed(error)

    @staticmethod
    def _renewal_failed(error: Exception) -> None:
        """The next renewal may succeed; a store refuses what comes too late."""
        log.warning("leases_not_renewed", error=str(error))

    async def _renew_some(
        self, leases: SessionLeases, mine: list[SessionLock], seats: set[SessionLock]
    ) -> None:
        newest = [seat for seat in mine if seat.newest is not None]
        held = [SessionLease(seat.key, seat.token) for seat in mine] + [s.newest for s in newest if s.newest]
        states = await leases.renew(held, LEASE_SECONDS)
        for seat, asked in zip(newest, states[len(mine) :], strict=True):
            if asked is None and seat in seats:
                seat.interrupt()
        for seat, asked in zip(mine, states[: len(mine)], strict=True):
            if seat not in seats:
                continue  # it was released meanwhile
            if asked is None:
                seat.lose()
            elif asked:
                seat.interrupt()

    async def close(self) -> None:
        await self._renewal.close()


async def become_newest(leases: SessionLeases, key: SessionKey, owner: str) -> SessionLease:
    """Takes the place of a principal's newest message in a session."""
    place = key._replace(agent=f"{key.agent}{_NEWEST_SUFFIX}{owner}")
    return SessionLease(place, await leases.take(place, _NEWEST_HOLDER, LEASE_SECONDS) or 0)


async def require_newest(leases: SessionLeases, seat: SessionLock) -> None:
    """Ends the run that sits here where a newer message has come."""
    if seat.newest is not None and await _is_lost(leases, seat.newest):
        seat.interrupt()
        await asyncio.sleep(0)


async def _is_lost(leases: SessionLeases, place: SessionLease) -> bool:
    return (await leases.renew([place], LEASE_SECONDS))[0] is None
