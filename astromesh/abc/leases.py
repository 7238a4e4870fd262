"""The seam of session leases: one writer per session over processes and machines (reliability.md R2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from astromesh.types import SessionKey


class Held(NamedTuple):
    """A lease that somebody holds.

    Args:
        token: fencing token; every lease has its own, and `ConversationStore.append` checks it.
    """

    key: SessionKey
    token: int


class SessionLeases(Protocol):
    """Who may write to which session, in the store that keeps its turns.

    Raises (all of them):
        StoreUnavailable: the store does not answer now.
    """

    @property
    def shared(self) -> bool:
        """False while no other process uses the store: then the lock of this process is enough."""

    def before_sharing(self, work: Callable[[], Awaitable[None]]) -> None:
        """`work` is awaited when `shared` has become True, before any other process gets a lease."""

    async def take(self, key: SessionKey, holder: str, seconds: float) -> int | None:
        """The token of a new lease; None while somebody else holds the session."""

    async def renew(self, held: Sequence[Held], seconds: float) -> tuple[bool | None, ...]:
        """Keeps leases; for each: False, True where another holder asks for an interrupt, None where lost."""

    async def release(self, held: Held) -> None:
        """Gives a lease back; one that is lost stays lost."""

    async def interrupt(self, key: SessionKey) -> None:
        """Asks whoever holds the session to let go."""
