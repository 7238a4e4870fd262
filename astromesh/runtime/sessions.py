"""One run at a time per session (reliability.md R2), and what happens to a message that comes meanwhile.

    policy      a message while another of its session is answered
    ---------   ---------------------------------------------------------------------------------------------
    enqueue     waits its turn, first come first served, at most `queue_timeout_seconds`, then SessionBusy
    reject      SessionBusy at once
    interrupt   the older run is cancelled and its caller gets Interrupted; so do older ones still waiting
    merge       messages within `merge_window_ms` become one run, texts joined by newline, one result for all;
                that run then waits its turn like enqueue

This is the lock of one process. Where several use the store of the turns, a run that has its seat takes the
session's lease as well (`runtime.leases`): only one run per process asks the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.durable import Policy
from astromesh.abc.leases import Held
from astromesh.errors import Interrupted, LeaseLost, SessionBusy, SessionNotFound
from astromesh.runtime.merge import Merging
from astromesh.types import SessionKey

#: messages of one session that may wait in this process
_MOST_WAITING = 1000
_INTERRUPTED = "A newer message of the session took this one's place."


class Seat:
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
    given: asyncio.Future[None] | None = None
    waiting: deque[Seat] | None = None
    newest: Held | None = None
    look: Callable[[], Awaitable[None]] | None = None
    interrupted: bool = False
    lost: bool = False

    def __init__(
        self, sessions: Sessions, key: SessionKey, policy: Policy, timeout: float, owner: str | None
    ) -> None:
        self.sessions, self.key, self.policy, self.timeout, self.owner = sessions, key, policy, timeout, owner

    async def __aenter__(self) -> Self:
        held = self.sessions.held
        if (holder := held.get(self.key)) is None:
            held[self.key] = self
        else:
            await self._come_after(holder)
        self.task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self.task = self.task, None
        if self.waiting:
            self.pass_on()
        else:
            del self.sessions.held[self.key]
        if (self.interrupted or self.lost) and task is not None:
            _end_interrupted(task, error, self.lost)

    def pass_on(self) -> None:
        """Gives the seat to the first who still waits."""
        waiting, self.waiting = self.waiting, None
        while waiting:
            following = waiting.popleft()
            if following.given is not None and not following.given.done():
                self.sessions.held[self.key] = following
                following.waiting = waiting
                following.given.set_result(None)
                return
        del self.sessions.held[self.key]

    def interrupt(self) -> None:
        """Cancels the run that sits here, and sends away who waits behind it."""
        if self.task is None:
            self.interrupted = True  # given the seat in this very moment: it leaves as soon as it enters
        elif not (self.interrupted or self.lost):
            self.task.cancel()
            self.interrupted = True
        for older in self.waiting or ():
            if older.given is not None and not older.given.done():
                older.given.set_exception(Interrupted(_INTERRUPTED))

    def lose(self) -> None:
        """Ends the run that sits here: another process has taken the session's lease."""
        if self.task is not None and not (self.lost or self.interrupted):
            self.task.cancel()
            self.lost = True

    async def _come_after(self, holder: Seat) -> None:
        if None not in (holder.owner, self.owner) and holder.owner != self.owner:
            raise SessionNotFound(f"There is no session {self.key.session_id!r}.")
        if self.policy == "reject":
            raise busy()
        if self.policy == "interrupt":
            holder.interrupt()
        if holder.waiting is None:
            holder.waiting = deque()
        if len(holder.waiting) >= _MOST_WAITING:
            raise SessionBusy(f"{_MOST_WAITING} messages wait for this session; send this one again later.")
        holder.waiting.append(self)
        try:
            await self._wait()
            if self.interrupted:
                raise Interrupted(_INTERRUPTED)
        except BaseException:
            self._leave()
            raise

    async def _wait(self) -> None:
        self.given = asyncio.get_running_loop().create_future()
        timer = asyncio.create_task(self.sessions.clock.sleep(self.timeout))
        timer.add_done_callback(self._give_up)
        try:
            await self.given
        finally:
            timer.cancel()

    def _give_up(self, timer: asyncio.Task[None]) -> None:
        if self.given is not None and not self.given.done() and not timer.cancelled():
            busy = f"The session was busy for {self.timeout:g} s with earlier messages; send this one again."
            self.given.set_exception(SessionBusy(busy))

    def _leave(self) -> None:
        """Out of the queue; a seat that was given in the same moment goes to the next one."""
        holder = self.sessions.held.get(self.key)
        if holder is self:
            self.pass_on()
        elif holder is not None and holder.waiting and self in holder.waiting:
            holder.waiting.remove(self)


def busy() -> SessionBusy:
    return SessionBusy("The session is answering another message; send this one again when it is done.")


def replaced() -> Interrupted:
    return Interrupted(_INTERRUPTED)


def _end_interrupted(task: asyncio.Task[Any], error: BaseException | None, lost: bool) -> None:
    """Turns our own cancel into Interrupted or LeaseLost; where another cancel came as well, it stays one."""
    if task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
        if lost:
            raise LeaseLost(
                "Another process has taken the session over, and nothing was stored; send this message again."
            ) from error
        raise Interrupted(_INTERRUPTED) from error


class Sessions:
    """The sessions in which something runs now; the others leave no trace.

    `held` maps a session to who sits in it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.held: dict[SessionKey, Seat] = {}
        self.merging = Merging(self.clock)

    def enter(
        self, key: SessionKey, policy: Policy = "enqueue", timeout: float = 60.0, *, owner: str | None = None
    ) -> Seat:
        """The session's only seat, as an async context manager. `merge` waits like `enqueue`; see `merging`.

        Args:
            timeout: seconds to wait for it.
            owner: principal who comes; None for one who may use the sessions of others.

        Raises (when entered):
            SessionBusy: by `reject` at once, otherwise after `timeout`.
            Interrupted: a newer message took the place.
            SessionNotFound: the session is in use by another principal.
        """
        return Seat(self, key, policy, timeout, owner)
