"""Which message of a session is the newest, for `sessions.concurrency: interrupt`.

A message takes its place when it comes: a plain run when it starts, a durable run when it is accepted,
however long it waits then. In one process a number is its place. Where several processes share the store of
turns, a lease is its place: each message takes it from the message before, and tokens grow in that order.

A message that has lost its place is not answered any more. An ended message leaves its lease for an hour, so
that an older durable run that begins later learns of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import sha256
from itertools import count
from typing import NamedTuple, TypeVar

from astromesh.errors import Interrupted
from astromesh.memory.base import SessionLease, SessionLeases
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
