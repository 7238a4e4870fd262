"""One run at a time per session (docs/api.md, Sessions): locks in this process, and leases between processes.

A run locks its session in the process first. Then it takes the session's lease from the store of its turns.
Step 11 shows the lease's token: if another process has taken the session meanwhile, the store writes nothing.
A store that serves one process alone has no leases, and they cost nothing.

With `interrupt`, a message takes a place in the order of messages when it comes: a plain run when it starts,
a durable run when it is accepted, however long it waits then. In one process a number is its place. Where
several processes share the store of turns, a lease is its place: each message takes it from the message
before, and tokens grow in that order. A message that has lost its place is not answered any more. An ended
message leaves its lease for an hour, so that an older durable run that begins later learns of it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

from astromesh.durable.base import ConcurrencyPolicy
from astromesh.durable.leases import LEASE_SECONDS, REQUEST_SECONDS, PeriodicJob
from astromesh.errors import AstromeshError, Interrupted, LeaseLost, SessionBusy
from astromesh.logs import get_logger
from astromesh.memory.base import SessionLease, SessionLeases
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import SessionKey

K = TypeVar("K", bound=Hashable)

#: the suffix of the agent's name, which contains no blank, and the holder of all places: each may be taken
_SUFFIX, _HOLDER = " newest", "newest"
#: the holder that asks whether anybody has the place
_INQUIRER = "inquirer"
#: seconds for which the place of a message is kept that waits or has ended
_KEEP_SECONDS = 3600.0
#: sessions, and accepted runs, whose numbers this process remembers
_MAX_REMEMBERED = 10_000
_REPLACED = "A newer message of the session replaced this one."


def replaced_error() -> Interrupted:
    return Interrupted(_REPLACED)


class Place(NamedTuple):
    """When a message came. A later place is greater.

    Args:
        token: of its lease; 0 while no other process uses the store of turns.
        number: in this process.
    """

    token: int = 0
    number: int = 0


class AcceptedRun(NamedTuple):
    """A durable run as a process begins a segment of it.

    Args:
        token: of the place that it took when it was accepted, or 0.
        resumed: whether the segment is not its first.
    """

    id: str
    token: int
    resumed: bool


class MessageOrder:
    """The order in which messages came to this process."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._newest: dict[SessionKey, int] = {}
        self._accepted: dict[str, int] = {}

    def arrive(self, key: SessionKey, run_id: str = "") -> int:
        """Returns the number of a message that comes now.

        Args:
            run_id: of a durable run, which asks for its place when it begins.
        """
        number = next(self._numbers)
        _remember(self._newest, key, number)
        if run_id:
            _remember(self._accepted, run_id, number)
        return number

    def place(self, key: SessionKey, run: AcceptedRun | None, store: SessionLeases | None) -> Place | None:
        """Returns the place of a run that begins; None if nothing is known about its order.

        Args:
            run: a durable run, None for a plain one, which comes now.
            store: Holds the leases of the session, if there are any.

        Raises:
            Interrupted: A newer message has come to this process, which is the only one.
        """
        if run is None:
            return Place(number=self.arrive(key))
        number = self._accepted.get(run.id, 0)
        if store is not None and store.shared:
            known = run.token > 0
        else:  # alone, a run that is not known here was accepted before this process began
            known = number > 0 or store is not None
            if known and number < self._newest.get(key, 0):
                raise replaced_error()
        if known:
            return Place(run.token, number)
        return None if run.resumed else Place(number=self.arrive(key))


def _remember(numbers: dict[K, int], key: K, number: int) -> None:
    numbers.pop(key, None)
    numbers[key] = number
    if len(numbers) > _MAX_REMEMBERED:
        del numbers[next(iter(numbers))]


async def become_newest(leases: SessionLeases, key: SessionKey) -> SessionLease:
    """Makes a message the newest of its session."""
    place = place_of(key)
    return SessionLease(place, await leases.take(place, _HOLDER, _KEEP_SECONDS) or 0)


def place_of(key: SessionKey) -> SessionKey:
    """Returns the key of a session's place. It names no person: it outlives the session."""
    digest = sha256(f"{key.owner}\0{key.session_id}".encode()).hexdigest()
    return SessionKey(key.tenant, f"{key.agent}{_SUFFIX}", digest)


async def resume_place(leases: SessionLeases, key: SessionKey, token: int) -> SessionLease:
    """Returns the place of an accepted message, which it may have taken hours ago.

    Raises:
        Interrupted: A newer message has taken it.
    """
    place = SessionLease(place_of(key), token)
    if not await is_replaced(leases, place):
        return place
    if await leases.take(place.key, _INQUIRER, -_KEEP_SECONDS) is None:
        raise replaced_error()
    return await become_newest(leases, key)  # its lease has expired, and nobody has taken it


async def is_replaced(leases: SessionLeases, place: SessionLease) -> bool:
    return (await leases.renew([place], _KEEP_SECONDS))[0] is None


M = TypeVar("M")
T = TypeVar("T")
log = get_logger("astromesh.sessions")

#: messages of one session that may wait in this process
_MAX_WAITING = 1000
#: seconds between two attempts for a session that another process has: the first pause, the longest
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.01, 0.25
#: spreads the attempts; the process's own `random` belongs to the program that embeds the runtime
_random = Random()  # noqa: S311 (no secret)


# -- merged messages (`sessions.concurrency: merge`) ---------------------------------------------------------


class MergeWindows:
    """The open windows by session: messages that arrive close together become one run."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.open: dict[SessionKey, _MergeWindow[Any, Any]] = {}

    async def join(
        self, group: SessionKey, message: M, seconds: float, work: Callable[[Sequence[M]], Awaitable[T]]
    ) -> T:
        """Calls `work` of the first caller once with all messages of a window; every caller gets its result.

        It is cancelled when the last caller has left.

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
        group: SessionKey,
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


# -- locks ---------------------------------------------------------------------------------------------------


class SessionLock:
    """The lock of a session, from `async with` to its end.

    Attributes:
        token: The fencing token of the lease; 0 without a lease.
        waiting: The locks that wait for this one, in order; None if none ever did.
        place: When its message came, with the policy `interrupt`. None: it interrupts whatever is there.
        newest: The lease of its place.
        check_newest: Ends the run if a newer message has taken that lease.
    """

    # class attributes, so that a lock without competition sets only what it needs
    token: int = 0
    task: asyncio.Task[Any] | None = None
    granted: asyncio.Future[None] | None = None
    waiting: deque[SessionLock] | None = None
    place: Place | None = None
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
    ) -> None:
        self.sessions, self.key, self.policy, self.timeout = sessions, key, policy, timeout

    async def __aenter__(self) -> Self:
        active = self.sessions.active
        if (holder := active.get(self.key)) is None:
            active[self.key] = self
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
        """Gives the session to the first lock that still waits."""
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
        """Cancels the run. A message that waits behind it may be the newest, and stays."""
        if self.task is None:
            self.interrupted = True  # it got the session just now: it leaves as soon as it enters
        elif not (self.interrupted or self.lost):
            self.task.cancel()
            self.interrupted = True

    def lose(self) -> None:
        """Ends the run: another process has taken the lease of its session."""
        if self.task is not None and not (self.lost or self.interrupted):
            self.task.cancel()
            self.lost = True

    async def _wait_behind(self, holder: SessionLock) -> None:
        if self.policy == "reject":
            raise busy_error()
        if self.policy == "interrupt":
            if self._is_older_than(holder) or any(map(self._is_older_than, holder.waiting or ())):
                raise replaced_error()
            holder.interrupt()
            for older in holder.waiting or ():
                if older.granted is not None and not older.granted.done():
                    older.granted.set_exception(replaced_error())
        if holder.waiting is None:
            holder.waiting = deque()
        if len(holder.waiting) >= _MAX_WAITING:
            raise SessionBusy(f"{_MAX_WAITING} messages wait for this session; send this one again later.")
        holder.waiting.append(self)
        try:
            await self._wait()
            if self.interrupted:
                raise replaced_error()
        except BaseException:
            self._leave()
            raise

    def _is_older_than(self, other: SessionLock) -> bool:
        return self.place is not None and other.place is not None and self.place < other.place

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
        """Leaves the queue. If it got the session in the same moment, the next one gets it."""
        holder = self.sessions.active.get(self.key)
        if holder is self:
            self.hand_over()
        elif holder is not None and holder.waiting and self in holder.waiting:
            holder.waiting.remove(self)


def busy_error() -> SessionBusy:
    return SessionBusy("The session is answering another message; send this one again when it is done.")


def _raise_interrupted(task: asyncio.Task[Any], error: BaseException | None, lost: bool) -> None:
    """Turns the cancel of this module into Interrupted or LeaseLost. Any other cancel stays one."""
    if task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
        if lost:
            raise LeaseLost(
                "Another process has taken the session over, and nothing was stored; send this message again."
            ) from error
        raise replaced_error() from error


class Sessions:
    """The sessions in which a run is active.

    Attributes:
        active: The lock of each of them.
        merging: The messages that wait to be merged.
        order: When the messages of `interrupt` have come.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.active: dict[SessionKey, SessionLock] = {}
        self.merging = MergeWindows(self.clock)
        self.order = MessageOrder()

    def enter(
        self,
        key: SessionKey,
        policy: ConcurrencyPolicy = "enqueue",
        timeout: float = 60.0,
    ) -> SessionLock:
        """Returns the lock of a session. `merge` waits like `enqueue`.

        Args:
            timeout: Seconds to wait for the session.

        Raises (when entered):
            SessionBusy: with `reject` at once, otherwise after `timeout`.
            Interrupted: a newer message has taken the place.
        """
        return SessionLock(self, key, policy, timeout)


# -- leases --------------------------------------------------------------------------------------------------


class SessionLeaseHolder:
    """The leases of this process.

    Attributes:
        holder: The name of this process, which no other has.
    """

    def __init__(self) -> None:
        self.holder = f"p_{secrets.token_hex(8)}"
        self._sessions: dict[SessionLeases, set[SessionLock]] = {}
        self._renewal = PeriodicJob(
            self._renew, REQUEST_SECONDS, self._renewal_failed, needed=lambda: any(self._sessions.values())
        )
        self._arrival_locks: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    def arrival_lock(self, key: SessionKey) -> asyncio.Lock:
        """Returns the lock under which a message becomes the newest: messages queue in that order."""
        return self._arrival_locks.setdefault(key, asyncio.Lock())

    async def lease_place(self, leases: SessionLeases, key: SessionKey, place: Place) -> SessionLease:
        """Returns the lease of a place. Raises: Interrupted: a newer message has taken it."""
        if place.token:
            return await resume_place(leases, key, place.token)
        async with self.arrival_lock(key):
            return await become_newest(leases, key)

    def sessions_under(self, leases: SessionLeases) -> set[SessionLock]:
        """Returns the locks whose sessions have these leases, or will when another process comes."""
        locks = self._sessions.get(leases)
        if locks is None:
            locks = self._sessions[leases] = set()
            leases.before_sharing(partial(self.share, leases))
        return locks

    async def share(self, leases: SessionLeases) -> None:
        """Takes leases for all active sessions: another process uses the store from now on."""
        for lock in tuple(self._sessions.get(leases, ())):
            if not lock.token:
                lock.token = await leases.take(lock.key, self.holder, LEASE_SECONDS) or 0
        self._renewal.start()

    async def take(self, leases: SessionLeases, lock: SessionLock) -> None:
        """Waits for the lease of a lock's session, at most `lock.timeout` seconds.

        Raises:
            SessionBusy: with `reject` at once, otherwise after the timeout.
        """
        policy, timeout = lock.policy, lock.timeout
        requested, pause = False, _FIRST_RETRY_SECONDS
        give_up = asyncio.get_running_loop().time() + timeout
        while not await self.try_once(leases, lock):
            if lock.newest is not None and await is_replaced(leases, lock.newest):
                raise replaced_error()
            if policy == "reject":
                raise busy_error()
            if asyncio.get_running_loop().time() >= give_up:
                raise SessionBusy(
                    f"The session was busy for {timeout:g} s with earlier messages; send this one again."
                )
            if policy == "interrupt" and not requested:
                requested = True
                await leases.interrupt(lock.key)
            await asyncio.sleep(pause * _random.uniform(0.5, 1.0))
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
        await require_newest(leases, lock)
        self._renewal.start()

    async def try_once(self, leases: SessionLeases, lock: SessionLock) -> bool:
        """Tries to take a lease. A run that is cancelled meanwhile knows whether it got the lease."""
        taking = asyncio.ensure_future(leases.take(lock.key, self.holder, LEASE_SECONDS))
        try:
            token = await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.wait([taking])
            lock.token = (not taking.exception() and taking.result()) or 0
            raise
        lock.token = token or 0
        return token is not None

    async def release(self, leases: SessionLeases, held: SessionLease) -> None:
        await self._leave(leases.release(held), held)

    async def keep_place(self, leases: SessionLeases, place: SessionLease) -> None:
        """Leaves the place of a message that has ended: an older one that begins later is replaced."""
        await self._leave(is_replaced(leases, place), place)

    @staticmethod
    async def _leave(work: Coroutine[Any, Any, object], held: SessionLease) -> None:
        try:
            await asyncio.shield(work)
        except AstromeshError as error:  # it expires by itself
            log.warning("lease_not_released", session_id=held.key.session_id, error=str(error))

    async def _renew(self) -> None:
        """Renews every lease. A store that is unavailable does not affect those of other stores."""
        for leases, locks in tuple(self._sessions.items()):  # others may come meanwhile
            if leased := [lock for lock in locks if lock.token]:
                try:
                    await self._renew_some(leases, leased, locks)
                except AstromeshError as error:
                    self._renewal_failed(error)

    @staticmethod
    def _renewal_failed(error: Exception) -> None:
        """Logs a failure. The next renewal may succeed; a store refuses one that comes too late."""
        log.warning("leases_not_renewed", error=str(error))

    async def _renew_some(
        self, leases: SessionLeases, leased: list[SessionLock], locks: set[SessionLock]
    ) -> None:
        newest = [lock for lock in leased if lock.newest is not None]
        held = [SessionLease(lock.key, lock.token) for lock in leased] + [
            s.newest for s in newest if s.newest
        ]
        states = await leases.renew(held, LEASE_SECONDS)
        for lock, renewed in zip(newest, states[len(leased) :], strict=True):
            if renewed is None and lock in locks:
                lock.interrupt()
        for lock, interrupt in zip(leased, states[: len(leased)], strict=True):
            if lock not in locks:
                continue  # it was released meanwhile
            if interrupt is None:
                lock.lose()
            elif interrupt and lock.newest is None:
                lock.interrupt()  # the newest message leaves for a newer one alone, which takes its place

    async def close(self) -> None:
        await self._renewal.close()


async def require_newest(leases: SessionLeases, lock: SessionLock) -> None:
    """Ends the run of a lock if a newer message has arrived."""
    if lock.newest is not None and await is_replaced(leases, lock.newest):
        lock.interrupt()
        await asyncio.sleep(0)
