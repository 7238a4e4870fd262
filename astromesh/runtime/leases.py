"""The leases of the sessions in which this process runs something (reliability.md R2).

A run has its seat in the process first (`runtime.sessions`), then takes the session's lease from the store
that keeps its turns; step 11 shows the lease's token, and a store whose session somebody else has taken
meanwhile writes nothing. Where a store serves this process alone, there is no lease and no cost.

By `interrupt` a message takes the place of the newest first, which is a lease as well: each message takes it
from the one before, whatever that waits for. Who has lost it is answered no more.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from functools import partial
from random import Random
from weakref import WeakValueDictionary

import structlog

from astromesh.abc.durable import Policy
from astromesh.abc.leases import Held, SessionLeases
from astromesh.errors import AstromeshError, SessionBusy
from astromesh.runtime.agent import Agent
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.runs import Handler, Wrapper
from astromesh.runtime.sessions import Seat, Sessions, busy, replaced
from astromesh.types import SessionKey

#: seconds a lease lasts, and between two looks at those that are held, which also renew them
LEASE_SECONDS, RENEW_SECONDS = float(os.environ.get("ASTROMESH_LEASE_SECONDS", "10")), 0.5
#: seconds between two tries for a session that another process holds: the first, the longest
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
#: behind an agent's name, which holds no blank; and who has the place of the newest message, in any process
_NEWEST, _WHOEVER = " newest ", "newest"
#: spreads the tries; the process's own `random` belongs to who embeds the runtime
_chance = Random()  # noqa: S311 (no secret)

log = structlog.get_logger("astromesh.sessions")


class Leases:
    """What this process holds.

    Attributes:
        holder: this process, by a name that no other has.
    """

    def __init__(self) -> None:
        self.holder = f"p_{secrets.token_hex(8)}"
        self._seats: dict[SessionLeases, set[Seat]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._coming: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    def coming(self, key: SessionKey) -> asyncio.Lock:
        """Held while a message becomes the newest: in a process they come to their seats in that order."""
        return self._coming.setdefault(key, asyncio.Lock())

    def over(self, leases: SessionLeases) -> set[Seat]:
        """The seats whose sessions are under these leases, or will be when another process comes."""
        seats = self._seats.get(leases)
        if seats is None:
            seats = self._seats[leases] = set()
            leases.before_sharing(partial(self.share, leases))
        return seats

    async def share(self, leases: SessionLeases) -> None:
        """Puts everything that runs without a lease under one: another process has come."""
        for seat in tuple(self._seats.get(leases, ())):
            if not seat.token:
                seat.token = await leases.take(seat.key, self.holder, LEASE_SECONDS) or 0
        self._keep_renewing()

    async def take(self, leases: SessionLeases, seat: Seat, policy: Policy, timeout: float) -> None:
        """Waits for the lease of a seat's session.

        Args:
            timeout: seconds to wait for another process.

        Raises:
            SessionBusy: by `reject` at once, otherwise after `timeout`.
        """
        asked, pause = False, _FIRST_PAUSE
        give_up = asyncio.get_running_loop().time() + timeout
        while not await self._try(leases, seat):
            if seat.newest is not None and await _has_lost(leases, seat.newest):
                raise replaced()
            if policy == "reject":
                raise busy()
            if asyncio.get_running_loop().time() >= give_up:
                raise SessionBusy(
                    f"The session was busy for {timeout:g} s with earlier messages; send this one again."
                )
            if policy == "interrupt" and not asked:
                asked = True
                await leases.interrupt(seat.key)
            await asyncio.sleep(pause * _chance.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)
        await hold_newest(leases, seat)
        self._keep_renewing()

    async def _try(self, leases: SessionLeases, seat: Seat) -> bool:
        """A run that is ended meanwhile knows whether it got the lease, and gives it back."""
        taking = asyncio.ensure_future(leases.take(seat.key, self.holder, LEASE_SECONDS))
        try:
            got = await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.wait([taking])
            seat.token = (not taking.exception() and taking.result()) or 0
            raise
        seat.token = got or 0
        return got is not None

    async def give_back(self, leases: SessionLeases, held: Held) -> None:
        try:
            await asyncio.shield(leases.release(held))
        except AstromeshError as error:  # it ends by itself
            log.warning("lease_not_released", session_id=held.key.session_id, error=str(error))

    def _keep_renewing(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while any(self._seats.values()):
            await asyncio.sleep(RENEW_SECONDS)
            for leases, seats in tuple(self._seats.items()):  # others may come meanwhile
                if mine := [seat for seat in seats if seat.token]:
                    await self._renew_some(leases, mine, seats)

    async def _renew_some(self, leases: SessionLeases, mine: list[Seat], seats: set[Seat]) -> None:
        newest = [seat for seat in mine if seat.newest is not None]
        held = [Held(seat.key, seat.token) for seat in mine] + [s.newest for s in newest if s.newest]
        try:
            states = await leases.renew(held, LEASE_SECONDS)
        except AstromeshError as error:  # the next one may work; the store refuses what comes too late
            log.warning("leases_not_renewed", count=len(mine), error=str(error))
            return
        for seat, asked in zip(newest, states[len(mine) :], strict=True):
            if asked is None and seat in seats:
                seat.interrupt()
        for seat, asked in zip(mine, states[: len(mine)], strict=True):
            if seat not in seats:
                continue  # it was given back meanwhile
            if asked is None:
                seat.lose()
            elif asked:
                seat.interrupt()

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])


async def become_newest(leases: SessionLeases, key: SessionKey, owner: str) -> Held:
    """Takes the place of a principal's newest message in a session."""
    place = key._replace(agent=f"{key.agent}{_NEWEST}{owner}")
    return Held(place, await leases.take(place, _WHOEVER, LEASE_SECONDS) or 0)


async def hold_newest(leases: SessionLeases, seat: Seat) -> None:
    """Ends the run that sits here where a newer message has come."""
    if seat.newest is not None and await _has_lost(leases, seat.newest):
        seat.interrupt()
        await asyncio.sleep(0)


async def _has_lost(leases: SessionLeases, place: Held) -> bool:
    return (await leases.renew([place], LEASE_SECONDS))[0] is None


def in_its_session(sessions: Sessions, leases: Leases) -> Wrapper:
    """Wraps a run so that its session admits one at a time, by the agent's `spec.sessions`.

    What `merge` merges has become one run before (`AgentRuntime.start`).
    """

    def wrap(handler: Handler) -> Handler:
        async def run_in_session(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
            spec = agent.manifest.spec.sessions
            owner = None if run.any_owner else run.owner
            policy = run.policy or spec.concurrency
            seat = sessions.enter(run.key, policy, spec.queue_timeout_seconds, owner=owner)
            over = agent.memory.leases
            if over is None:
                async with seat:
                    return await handler(agent, request, run)
            if policy == "interrupt" and over.shared:
                async with leases.coming(run.key):
                    seat.newest = await become_newest(over, run.key, run.owner)
            try:
                async with seat:
                    return await run_under_lease(over, seat, agent, request, run)
            finally:
                if seat.newest is not None:
                    await leases.give_back(over, seat.newest)

        async def run_under_lease(
            over: SessionLeases, seat: Seat, agent: Agent, request: RunRequest, run: Run
        ) -> RunAnswer:
            spec = agent.manifest.spec.sessions
            run.seat = seat
            seats = leases.over(over)
            seats.add(seat)
            seat.look = partial(hold_newest, over, seat)
            try:
                if over.shared:
                    await leases.take(over, seat, seat.policy, spec.queue_timeout_seconds)
                return await handler(agent, request, run)
            finally:
                seats.discard(seat)
                if seat.token:
                    await leases.give_back(over, Held(seat.key, seat.token))

        return run_in_session

    return wrap
