"""The leases of the sessions in which this process runs something (reliability.md R2).

A run has its seat in the process first (`runtime.sessions`), then takes the session's lease from the store
that keeps its turns; step 11 shows the lease's token, and a store whose session somebody else has taken
meanwhile writes nothing. Where a store serves this process alone, there is no lease and no cost.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from functools import partial
from random import Random

import structlog

from astromesh.abc.durable import Policy
from astromesh.abc.leases import Held, SessionLeases
from astromesh.errors import AstromeshError, SessionBusy
from astromesh.runtime.agent import Agent
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.runs import Handler, Wrapper
from astromesh.runtime.sessions import Seat, Sessions, busy

#: seconds a lease lasts, and between two looks at those that are held, which also renew them
LEASE_SECONDS, RENEW_SECONDS = float(os.environ.get("ASTROMESH_LEASE_SECONDS", "10")), 0.5
#: seconds between two tries for a session that another process holds: the first, the longest
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
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
        while not (token := await leases.take(seat.key, self.holder, LEASE_SECONDS)):
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
        seat.token = token
        self._keep_renewing()

    async def give_back(self, leases: SessionLeases, seat: Seat) -> None:
        held = Held(seat.key, seat.token)
        try:
            await leases.release(held)
        except AstromeshError as error:  # it ends by itself
            log.warning("lease_not_released", session_id=held.key.session_id, error=str(error))

    def _keep_renewing(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while any(self._seats.values()):
            await asyncio.sleep(RENEW_SECONDS)
            for leases, seats in self._seats.items():
                if mine := [seat for seat in seats if seat.token]:
                    await self._renew_some(leases, mine, seats)

    async def _renew_some(self, leases: SessionLeases, mine: list[Seat], seats: set[Seat]) -> None:
        try:
            states = await leases.renew([Held(seat.key, seat.token) for seat in mine], LEASE_SECONDS)
        except AstromeshError as error:  # the next one may work; the store refuses what comes too late
            log.warning("leases_not_renewed", count=len(mine), error=str(error))
            return
        for seat, asked in zip(mine, states, strict=True):
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


def in_its_session(sessions: Sessions, leases: Leases) -> Wrapper:
    """Wraps a run so that its session admits one at a time, by the agent's `spec.sessions`.

    What `merge` merges has become one run before (`AgentRuntime.start`).
    """

    def wrap(handler: Handler) -> Handler:
        async def run_in_session(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
            spec = agent.manifest.spec.sessions
            owner = None if run.any_owner else run.owner
            policy = run.policy or spec.concurrency
            async with sessions.enter(run.key, policy, spec.queue_timeout_seconds, owner=owner) as seat:
                over = agent.memory.leases
                if over is None:
                    return await handler(agent, request, run)
                run.seat = seat
                seats = leases.over(over)
                seats.add(seat)
                try:
                    if over.shared:
                        await leases.take(over, seat, policy, spec.queue_timeout_seconds)
                    return await handler(agent, request, run)
                finally:
                    seats.discard(seat)
                    if seat.token:
                        await leases.give_back(over, seat)

        return run_in_session

    return wrap
